"""Whatever the environment says, the result is the settings'."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from gc25d.environment import LAUNCHED, STARTED_BY, cleaned, is_removed, launched
from gc25d.files import digest_file
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.steps import step_json
from small_step import small_step

HERE = Path(__file__).parent
SETTINGS = small_step(
    train={"global_batch": 4, "grad_accum": 2, "warmup_steps": 0, "cpu_threads": 1},
    validation={"n": 1, "timesteps": [500]},
)
# What alters nothing, of what accelerate, DeepSpeed and torch.distributed read.
HARMLESS = {
    "trackers": (
        *("AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY"),
        *("CLEARML_PROJECT", "CLEARML_TASK"),
        *("MLFLOW_EXPERIMENT_NAME", "MLFLOW_NESTED_RUN", "MLFLOW_RUN_ID", "MLFLOW_TAGS"),
    ),
    "tools and folders": (
        *("ASCEND_HOME_PATH", "CCL_ROOT", "CFLAGS", "CPATH", "CUTLASS_PATH", "CXX", "LDFLAGS"),
        *("LIBRARY_PATH", "NVSHMEM_LIB_DIR", "ROCSHMEM_LIB_DIR", "HF_HOME", "TRITON_CACHE_DIR"),
        *("TRITON_HOME", "XDG_CACHE_HOME", "USER", "PYTHONPATH"),
    ),
    "devices, networks, threads": (
        *("CUDA_VISIBLE_DEVICES", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME"),
        "OMP_NUM_THREADS",
    ),
    "messages": (
        *("DISABLE_LOGS_WHILE_COMPILING", "LOGGER_METHODS_TO_EXCLUDE_FROM_DISABLE"),
        "TRANSFORMERS_NO_ADVISORY_WARNINGS",
    ),
    "tests": ("PYTEST_XDIST_WORKER", "RUN_SLOW"),
}
KNOWN = {name for names in HARMLESS.values() for name in names}
# Each of these altered the result, hung or crashed before environments were cleaned.
WORST: tuple[Mapping[str, str], ...] = (
    {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3"},
    {"ACCELERATE_DYNAMO_BACKEND": "EAGER"},
    {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"},
    {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"},
    {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    {"LOCAL_RANK": "0"},
    {"PMI_SIZE": "2"},
    {"OMPI_COMM_WORLD_SIZE": "2"},
)
WRONG = {"ACCELERATE_MIXED_PRECISION": "bf16", "DS_ACCELERATOR": "cuda", "WORLD_SIZE": "2"} | {
    name: value for case in WORST[:3] for name, value in case.items()
}


def package(name: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def read() -> list[str]:
    """What accelerate, DeepSpeed, and torch's launcher and process groups read."""
    folders = [package("accelerate"), package("deepspeed"), package("torch") / "distributed"]
    command = [sys.executable, str(HERE / "environment_scan.py"), *map(str, folders)]
    found: list[str] = json.loads(subprocess.check_output(command))
    return found


def wrong(name: str) -> str:
    """A value that means something else to whoever reads it: a true flag, another number."""
    return WRONG.get(name, f"{os.environ.get(name, '')}:1" if name == "PYTHONPATH" else "1")


def test_every_variable_that_the_libraries_read_is_removed_or_known(read: list[str]) -> None:
    assert {name for name in read if not is_removed(name)} <= KNOWN
    worst = {name for case in WORST for name in case}
    assert worst <= {*read}  # the scan finds what is known to be read
    launchers = {"MV2_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "TORCHELASTIC_RUN_ID"}
    assert launchers | {"DS_ACCELERATOR", "ACCELERATE_DYNAMO_MODE", "FSDP_VERSION"} <= {*read}
    assert len(read) > 200


def test_each_of_them_leaves_the_same_environment(read: list[str]) -> None:
    mine = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "NCCL_SOCKET_IFNAME": "ib0", "HOME": "/"}
    mine |= {"TORCHINDUCTOR_CACHE_DIR": "/c", "OMP_NUM_THREADS": "2", "SLURM_JOB_ID": "7"}
    assert cleaned(mine, 1) == mine
    assert {name for name in read if cleaned({**mine, name: "1"}, 1) != mine} <= KNOWN
    others = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE", "TORCH_COMPILE_DISABLE")
    others += ("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHDYNAMO_DISABLE", "OMP_THREAD_LIMIT", "NCCL_ALGO")
    others += ("CUBLAS_WORKSPACE_CONFIG", "SLURM_PROCID", "ONEDNN_DEFAULT_FPMATH_MODE")
    others += ("DIFFUSERS_ATTN_BACKEND", "TRITON_INTERPRET", "USE_TORCH", "PMIX_RANK")
    assert cleaned({**mine, **dict.fromkeys(others, "1")}, 1) == mine


def test_a_place_is_taken_from_the_launcher_that_is_the_parent() -> None:
    placed = dict.fromkeys(LAUNCHED, "1") | {STARTED_BY: "77"}
    assert cleaned(placed, 77) == placed
    assert launched(placed, 77)
    assert cleaned(placed, 78) == {}
    assert not launched(placed, 78)


def outcomes(
    data: Path, folder: Path, cases: Sequence[tuple[Mapping[str, str], bool]]
) -> list[str]:
    """What trainings in these environments give; whether each starts as a step does."""
    listed = [{"variables": dict(case), "as_a_step": as_a_step} for case, as_a_step in cases]
    write_json(folder / "cases.json", listed)
    write_json(folder / "settings.json", step_json(SETTINGS))
    program = str(HERE / "hostile_runs.py")
    subprocess.run([sys.executable, program, str(data), str(folder)], check=True)
    found: list[str] = json.loads((folder / "found.json").read_text())
    return found


@pytest.fixture(scope="module")
def worst(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Outcomes with nothing set, then of each of the worst, where nothing cleans beforehand."""
    cases = [(case, False) for case in ({}, *WORST)]
    return outcomes(small_dataset, tmp_path_factory.mktemp("worst"), cases)


def test_the_worst_ones_do_not_reach_the_engine(worst: list[str]) -> None:
    own, *others = worst
    assert len(own) == 64
    assert dict(zip(map(str, WORST), others, strict=True)) == dict.fromkeys(map(str, WORST), own)


@pytest.mark.slow
def test_each_variable_set_to_a_wrong_value_alters_nothing(
    read: list[str], small_dataset: Path, tmp_path: Path
) -> None:
    """One at a time; those that a step removes, and that leave no trace, by twenties."""
    removed = [name for name in read if is_removed(name)]
    groups = [[name] for name in read if not is_removed(name)]
    groups += [removed[start : start + 20] for start in range(0, len(removed), 20)]
    cases = [{}, *({name: wrong(name) for name in group} for group in groups)]
    own, *others = outcomes(small_dataset, tmp_path, [(case, True) for case in cases])
    assert len(own) == 64
    found = {str(group): text for group, text in zip(groups, others, strict=True)}
    assert found == dict.fromkeys(found, own)


def trainer(data: Path, run: Path, engine: str, processes: int) -> list[str]:
    """The rule's command, for one step."""
    settings = step_json(SETTINGS)
    write_json(run / "settings.json", settings)
    fingerprint = read_json(data / "READY")["fingerprint"]
    binding = {"settings_sha256": digest_json(settings), "data_fingerprint": fingerprint}
    write_json(run / "binding.json", binding)
    numbers = {"until": 1, "micro-batch": 2, "save-every": 9, "log-every": 9}
    numbers |= {"validate-every": 9, "workers": 0, "nodes": 1, "gpus-per-node": 0}
    paths = {"settings": "settings.json", "binding": "binding.json", "done": "done.json"}
    paths |= {"weights": "weights.safetensors", "probe": "probe.safetensors", "log": "log.txt"}
    given = {**numbers, **{name: run / path for name, path in paths.items()}, "data": data}
    given |= {"engine": engine, "processes": processes}
    options = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "gc25d.steps.train", *options]


def weights(data: Path, run: Path, environment: Mapping[str, str], *engine: str | int) -> str:
    """The digest of what the trainer leaves."""
    run.mkdir()
    command = trainer(data, run, str(engine[0]), int(engine[1]))
    done = subprocess.run(
        command, env={**os.environ, **environment}, timeout=150, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + (run / "log.txt").read_text()
    return digest_file(run / "weights.safetensors")


def test_all_of_them_at_once_alter_nothing(
    read: list[str], worst: list[str], small_dataset: Path, tmp_path: Path
) -> None:
    """By the rule's own command, so before the libraries are imported."""
    hostile = {name: wrong(name) for name in read}
    assert weights(small_dataset, tmp_path / "run", hostile, "plain", 1) == worst[0]
    told = (tmp_path / "run/log.txt").read_text()
    assert "of the environment, ignored: ACCELERATE_ALLOW_CP_STANDALONE, " in told


@pytest.mark.slow
def test_processes_of_a_job_heed_nobody_but_their_launcher(
    read: list[str], small_dataset: Path, tmp_path: Path
) -> None:
    hostile = {name: wrong(name) for name in read}
    expected = weights(small_dataset, tmp_path / "own", {}, "deepspeed", 2)
    assert weights(small_dataset, tmp_path / "hostile", hostile, "deepspeed", 2) == expected
