"""DeepSpeed's ZeRO-2 through accelerate: gradients and optimizer state are shared out by process.

accelerate sets up processes, precision and DeepSpeed's engine; backward passes, clipping and
updates are driven here, because its wrapper steps inside `backward`, before anything can be
refused. Each trained role has an engine of its own (gc25d/train/zero/role.py).
"""

import logging
import math
import warnings
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DistributedType, InitProcessGroupKwargs
from torch import Tensor, distributed

from gc25d.errors import UserError
from gc25d.methods.base import LossMap, Outputs, TrainingMethod
from gc25d.methods.roles import TrainedRole
from gc25d.records import to_json
from gc25d.train.engine import (
    FP32_BYTES,
    bf16_weights,
    explicit_choices,
    fix_arithmetic,
    fuse,
    peak_memory_gb,
)
from gc25d.train.gradients import sanitize, tell_sanitized
from gc25d.train.processes.launch import own_place
from gc25d.train.states.fragments import Fragment
from gc25d.train.zero.all_reduce import PINNED, sum_beside_training
from gc25d.train.zero.config import REDUCE_BUCKET, zero_config
from gc25d.train.zero.role import PRECISIONS, ZeroRole, ZeroStep

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others, whose first steps may compile for minutes."""
LARGE_BYTES = 64e9
"""Memory of a GPU that holds a 5B model three times while it is prepared."""
_NORM_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


class ZeroEngine:
    """One of several processes; its environment is set by gc25d.train.processes.launch."""

    name = "deepspeed"

    def __init__(
        self,
        precision: str,
        cpu_threads: int,
        global_batch: int,
        micro_batch: int,
        *,
        gpu: bool,
        exact: bool = True,
    ) -> None:
        """Join the other processes.

        Args:
            precision: `fp32` or `bf16`, of the forward and backward pass.
            cpu_threads: of CPU arithmetic.
            global_batch: samples of an optimizer step over all processes.
            micro_batch: samples of a forward pass, at most.
            gpu: whether each process has a GPU.
            exact: as for `fix_arithmetic`.

        Raises:
            UserError: DeepSpeed is missing, or what runs is not what was asked for.
        """
        place = own_place()
        if place is None:
            raise UserError(
                "the deepspeed engine needs its launcher: start it through "
                "`python -m gc25d.steps.train`"
            )
        fix_arithmetic(cpu_threads, gpu=gpu, exact=exact)
        _quiet_deepspeed()
        self.world_size = place.world_size
        self.processes_per_host = place.local_world_size
        self.precision = precision
        config = zero_config(self.world_size, precision, global_batch, micro_batch, gpu=gpu)
        group = InitProcessGroupKwargs(backend="nccl" if gpu else "gloo", timeout=TIMEOUT)
        self.accelerator = Accelerator(
            mixed_precision="bf16" if precision == "bf16" else "no",
            **explicit_choices(config["gradient_accumulation_steps"]),
            deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
            kwargs_handlers=[group],
        )
        self.rank = int(self.accelerator.process_index)
        self._check_world(gpu)
        if self.rank == 0:
            logger.info("DeepSpeed: %s", to_json(config, indent=None))
        self._roles: dict[str, ZeroRole] = {}

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def start_device(self) -> torch.device:
        """The CPU unless the device has room for the fp32 weights beside all that is made of them.

        Weights pass through fp32, bf16 and DeepSpeed's flat copy of that.
        """
        large = self.device.type == "cuda" and (
            torch.cuda.get_device_properties(self.device).total_memory > LARGE_BYTES
        )
        return self.device if large else torch.device("cpu")

    def state_bytes(self, parameters: int) -> int:
        """Whole weights, this process's part of masters, moments and gradients, and buckets.

        Masters, two moments and added-up gradients are fp32; two buckets hold gradients on their
        way, in the weights' type.
        """
        width = PRECISIONS[self.precision].itemsize
        own = 4 * FP32_BYTES * parameters // self.world_size
        return width * (parameters + 2 * REDUCE_BUCKET) + own

    def prepare(self, method: TrainingMethod) -> None:
        """Hand each trained role to an engine of DeepSpeed's; frozen ones go to the device."""
        self._roles = {name: self._prepared(name, role) for name, role in method.trained.items()}
        left_alone = {sum_beside_training(held.zero) for held in self._roles.values()} - {""}
        if left_alone and self.rank == 0:
            logger.warning(
                "%s is not %s (envs/gpu.txt): it sums gradients in its own way. Results are the "
                "same; steps take longer, as a GPU is held up at the end of every backward pass",
                *(left_alone.pop(), PINNED),
            )
        for name, role in method.all_roles.items():
            held = self._roles.get(name)
            if held is None:
                role.model.to(self.device, PRECISIONS[self.precision])
            else:
                step = ZeroStep(held.deepspeed, held.optimizer)
                method.replace_role(name, held.deepspeed, step)
                method.role_backward[name] = held.backward
        if self.device.type == "cuda":  # what was needed once is no part of a step's peak
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def _prepared(self, name: str, role: TrainedRole) -> ZeroRole:
        weights = {n: p.detach() for n, p in role.model.named_parameters()}
        fuse(role.optimizer, self.device)
        deepspeed, _ = self.accelerator.prepare(role.model, role.optimizer)
        held = ZeroRole(name, deepspeed, role.optimizer)
        held.check(self.precision)
        held.restore_masters(weights)
        return held

    def backward(
        self,
        method: TrainingMethod,
        loss_map: LossMap,
        outputs: Outputs,
        share: float,
        *,
        last: bool,
    ) -> None:
        """Accumulate into this process's part, summed over processes."""
        for held in self._roles.values():
            held.deepspeed.set_gradient_accumulation_boundary(last)
        method.backward(loss_map, outputs, 1 / share)

    def clip(self, method: TrainingMethod, iteration: int, max_norm: float) -> float:
        """Clip the summed gradients of each stepping role, each process its part.

        Returns:
            The norm before that, over all of them. DeepSpeed's own clipping is off: it marks a norm
            that is not finite as −1.
        """
        sanitized = method.get_grad_sanitize_targets(iteration)
        norms = []
        for name in method.get_grad_clip_targets(iteration):
            gradients = list(self._roles[name].gradients())
            norm = _norm(gradients)
            if not math.isfinite(norm) and name in sanitized:
                sanitize(gradients)
                left = _norm(gradients)
                norm = left if tell_sanitized(name, iteration, norm, left) else norm
            _clip(gradients, norm, max_norm)
            norms.append(norm)
        return math.hypot(*norms)

    def fragments(self, method: TrainingMethod) -> list[Fragment]:
        """The parts of master weights and AdamW state that this process owns."""
        method.seed_optimizer_state_for_resume()
        return [fragment for held in self._roles.values() for fragment in held.fragments()]

    def after_load(self, method: TrainingMethod) -> None:
        """Master weights → the weights that all processes compute with."""
        for held in self._roles.values():
            held.zero.update_lp_params()

    def full_weights(self, method: TrainingMethod, role: str) -> dict[str, Tensor] | None:
        """The weights that this process computes with; None on all but the first."""
        if self.rank:
            return None
        held = self._roles.get(role)
        if held is not None:
            return held.weights()
        return bf16_weights(method.inference_checkpoint_modules(role)["transformer"])

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over processes, on the CPU."""
        summed = values.to(self.device, copy=True)
        distributed.all_reduce(summed)
        return summed.cpu()

    def gather(self, item: Item) -> list[Item]:
        """Every process's item, by rank."""
        items: list[Any] = [None] * self.world_size
        distributed.all_gather_object(items, item)
        return items

    def barrier(self) -> None:
        """Wait for all processes."""
        self.accelerator.wait_for_everyone()

    def memory_gb(self) -> float:
        """Peak memory of this process's device, or of the process."""
        return peak_memory_gb(self.device)

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()

    def _check_world(self, gpu: bool) -> None:
        """Refuse another back end: accelerate falls back in silence.

        Raises:
            UserError: not DeepSpeed, another number of processes, or another kind of device.
        """
        kind, count = self.accelerator.distributed_type, self.accelerator.num_processes
        found = (kind, count, self.device.type)
        asked = (DistributedType.DEEPSPEED, self.world_size, "cuda" if gpu else "cpu")
        if found != asked:
            raise UserError(
                f"accelerate runs {found[0]} with {found[1]} processes on {found[2]}, expected "
                f"{asked[0]} with {asked[1]} on {asked[2]}: unset ACCELERATE_* and start it "
                "through `python -m gc25d.steps.train`"
            )


def _norm(gradients: list[Tensor]) -> float:
    """The global norm of all processes' parts."""
    total = torch.nn.utils.get_total_norm(gradients).double() ** 2
    distributed.all_reduce(total)
    return float(total.sqrt())


def _clip(gradients: list[Tensor], norm: float, max_norm: float) -> None:
    """Scale this process's parts down from the global `norm` to `max_norm`."""
    if max_norm / (norm + _NORM_EPSILON) < 1:  # False for NaN; an infinity is refused anyway
        torch._foreach_mul_(gradients, max_norm / (norm + _NORM_EPSILON))


def _quiet_deepspeed() -> None:
    """Let DeepSpeed start without compiling, and say only what is wrong.

    It would compile a CPU communication kernel at its first start; gloo gives the same results.

    Raises:
        UserError: DeepSpeed is not installed.
    """
    logging.disable(logging.INFO)  # its import tries the compiler, and says so to everybody
    try:
        from deepspeed.ops import __compatible_ops__ as kernels
    except ImportError as error:
        raise UserError(
            f"train.engine deepspeed: deepspeed is not installed ({error}): "
            "pip install -r envs/gpu.txt"
        ) from None
    finally:
        logging.disable(logging.NOTSET)
    kernels["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
