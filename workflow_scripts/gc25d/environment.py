"""Which environment variables may not reach a step, because they would alter its result.

Libraries take defaults, devices, processes and ways to calculate from the environment; here the
settings alone decide them. A step's process therefore starts by removing these variables, before
any library is imported (gc25d/steps/__init__.py), and so does the launcher for the processes that
it starts. Imports nothing but the standard library.
"""

import contextlib
import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping

STARTED_BY = "GC25D_STARTED_BY"
"""Process id of the launcher (gc25d.train.processes.launch) that started this rank."""
PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""A process's place among others, as torch.distributed, accelerate and DeepSpeed read it."""
LAUNCHED = (STARTED_BY, *PLACE, "DS_ACCELERATOR")
"""What the launcher sets; from anywhere else it is removed."""

REMOVED: Mapping[str, tuple[str, ...]] = {
    # accelerate/{state,accelerator}.py, accelerate/utils/{dataclasses,environment,other}.py
    "accelerate": (
        *("ACCELERATE_*", "FSDP_*", "MEGATRON_LM_*", "PARALLELISM_CONFIG_*", "FORK_LAUNCHED"),
        *("PJRT_DEVICE", "PT_HPU_*", "TPU_NAME", "USE_TORCH_XLA", "XLA_*", "NPROC"),
    ),
    # deepspeed/comm/{comm,torch,utils,mori}.py, accelerator/real_accelerator.py, launcher, ops
    "DeepSpeed": (
        *("DS_*", "DEEPSPEED_*", "AUTOEP_*", "MORI_*", "LOCAL_SIZE", "CROSS_*"),
        *("AZUREML_*", "AZ_BATCH*", "DLTS_JOB_ID", "DLWS_JOB_ID", "SM_TRAINING_ENV"),
        *("PDSH_RCMD_TYPE", "XPU_EVENT_KL3_ENABLE"),
    ),
    # torch/distributed/{run,rendezvous}.py and elastic; accelerate/utils/environment.py;
    # deepspeed/comm/comm.py; the launchers of Open MPI, MPICH, Intel MPI, MVAPICH, Cray and SLURM
    "places of processes": (
        *(STARTED_BY, *PLACE, "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_*"),
        *("TORCHELASTIC_*", "TORCHCOMM_*", "USE_LIBUV", "PYTHON_EXEC", "LOGLEVEL"),
        *("OMPI_COMM_WORLD_*", "PMI_*", "PMIX_*", "MV2_*", "MPI_LOCAL*", "PALS_*", "PET_*"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SMDATAPARALLEL_*"),
    ),
    # torch/_dynamo/config.py, torch/_inductor/config.py, torch/**.py, libtorch_cpu.so, libc10.so
    "torch": (
        *("TORCH_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCHEXPORT_*", "PYTORCH_*"),
        *("AOT_*", "AOTINDUCTOR_*", "INDUCTOR_*", "CUTEDSL_*", "CUTLASS_EPILOGUE_FUSION"),
        *("ENABLE_PERSISTENT_TMA_MATMUL", "ENABLE_TEMPLATE_TMA_STORE"),
        *("ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE", "TENSORIFY_PYTHON_SCALARS", "STRICT_DEFAULT"),
        *("TRITON_*", "DCP_*", "FR_*", "FX_PATCH_GETITEM", "PARTITIONER_*", "FAKE_ALLOW_META"),
        *("UNSAFE_SKIP_FSDP_MODULE_GUARDS", "LTC_*", "QUACK_ARCH"),
    ),
    # libtorch_cpu.so (ATen, MKL, oneDNN), libgomp.so, numpy's OpenBLAS and numpy/_core
    "arithmetic on CPUs": (
        *("ATEN_CPU_CAPABILITY", "MKL_*", "USE_MKL_GEMM", "DNNL_*", "ONEDNN_*", "BLIS_*"),
        *("OPENBLAS_*", "GOTO_*", "NPY_*", "KMP_*", "OMP_DYNAMIC", "OMP_NESTED", "OMP_SCHEDULE"),
        *("OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS", "OMP_CANCELLATION"),
    ),
    # cuBLAS, cuDNN, NCCL, and what torch's process group asks of it
    "arithmetic on GPUs": (
        *("CUBLAS_*", "CUBLASLT_*", "CUDNN_*", "NVIDIA_TF32_OVERRIDE", "FLASH_ATTENTION_*"),
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_M??_NCHANNELS", "NCCL_M??_CTAS"),
        *("NCCL_BUFFSIZE", "NCCL_TUNER_*", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING"),
        "NCCL_GRAPH_MIXING_SUPPORT",
    ),
    # diffusers/utils/constants.py, diffusers and transformers/utils/import_utils.py
    "diffusers and transformers": (
        *("DIFFUSERS_*", "TRANSFORMERS_*", "USE_TORCH", "USE_TF", "USE_JAX", "USE_FLAX"),
        *("USE_SAFETENSORS", "USE_HUB_KERNELS", "HF_ENABLE_PARALLEL_LOADING"),
        *("HF_DEACTIVATE_ASYNC_LOAD", "DISABLE_SAFETENSORS_CONVERSION"),
    ),
}
"""Patterns of names by who reads them."""

KEPT = (
    # Threads: sums do not depend on them, and Snakemake tells each job how many are its own.
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"),
    # Folders and tools of the machine.
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    *("TRITON_HOME", "TRITON_*_PATH", "CUDNN_HOME", "CUDNN_LIBRARY", "CUDNN_PATH"),
    "TRANSFORMERS_CACHE",
    # How much of the machine compilers and memory take.
    *("TORCHINDUCTOR_COMPILE_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    # What is said aloud; what is fetched.
    *("TORCH_LOGS", "TORCH_LOGS_FORMAT", "TORCH_LOGS_OUT", "TORCH_CPP_LOG_LEVEL"),
    *("TORCH_SHOW_CPP_STACKTRACES", "DIFFUSERS_VERBOSITY", "TRANSFORMERS_VERBOSITY"),
    *("TRANSFORMERS_OFFLINE", "TRANSFORMERS_NO_ADVISORY_WARNINGS"),
)
"""Patterns of names that stay although they match one above: they alter no result."""


def is_removed(name: str) -> bool:
    """Whether a variable may not reach a step."""
    patterns = (pattern for group in REMOVED.values() for pattern in group)
    return _matches(name, patterns) and not _matches(name, KEPT)


def launched(environment: Mapping[str, str], parent: int) -> bool:
    """Whether our launcher started a process and set its place among others.

    The mark of another process's launcher, inherited by way of a shell say, does not count.

    Args:
        environment: of the process.
        parent: its parent's id.
    """
    return environment.get(STARTED_BY) == str(parent)


def cleaned(environment: Mapping[str, str], parent: int) -> dict[str, str]:
    """An environment without the variables that would alter a result.

    Args:
        environment: of a process.
        parent: its parent's id: where that is the launcher, what the launcher has set stays.
    """
    own = LAUNCHED if launched(environment, parent) else ()
    return {n: value for n, value in environment.items() if n in own or not is_removed(n)}


def clean_this_process() -> tuple[str, ...]:
    """Remove them from this process's environment; returns their names, sorted."""
    kept = cleaned(os.environ, os.getppid())
    removed = tuple(sorted({*os.environ} - {*kept}))
    for name in removed:
        del os.environ[name]
    return removed


@contextlib.contextmanager
def without_them() -> Iterator[None]:
    """An environment without them while something is built that reads it."""
    before = dict(os.environ)
    clean_this_process()
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in before.items() if is_removed(name)})


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
