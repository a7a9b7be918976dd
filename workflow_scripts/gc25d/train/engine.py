"""Where the arithmetic of training runs: devices, processes, backward, clipping, state."""

import math
import os
from typing import Any, Protocol, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, TorchDynamoPlugin
from torch import Tensor, nn
from torch.optim import Optimizer

from gc25d.environment import without_them
from gc25d.errors import UserError
from gc25d.methods.base import LossMap, Outputs, TrainingMethod
from gc25d.methods.roles import TrainedRole
from gc25d.train.gradients import sanitized_norm
from gc25d.train.states.fragments import Fragment

FP32_BYTES = 4
MOMENTS = ("exp_avg", "exp_avg_sq", "step")

Item = TypeVar("Item")


class SharedError(UserError):
    """An error that every process finds alike and raises: the first one reports it."""


class Engine(Protocol):
    """What the loop asks of the machinery below it. All processes call everything in one order."""

    name: str
    """`plain` or `deepspeed`."""
    rank: int
    world_size: int
    processes_per_host: int

    @property
    def start_device(self) -> torch.device:
        """Where a model is built before `prepare`."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        ...

    def state_bytes(self, parameters: int) -> int:
        """What trained parameters, their gradients and moments take of a device's memory.

        Args:
            parameters: how many numbers are trained.
        """
        ...

    def prepare(self, method: TrainingMethod) -> None:
        """Move the method's models to the device and let this engine run its updates."""
        ...

    def backward(
        self,
        method: TrainingMethod,
        loss_map: LossMap,
        outputs: Outputs,
        share: float,
        *,
        last: bool,
    ) -> None:
        """Accumulate a micro-batch's gradients, weighted by its share of the step's samples.

        After the step's `last` one, gradients are sums over all micro-batches of all processes.
        """
        ...

    def clip(self, method: TrainingMethod, iteration: int, max_norm: float) -> float:
        """Scale each stepping role's gradients down to a global norm of `max_norm`.

        Before that, gradients that are not finite become 0, with a warning, where the method's
        `get_grad_sanitize_targets` names them.

        Returns:
            The norm before scaling, over all of them and over all processes' parts; an infinity or
            NaN if any gradient was not finite and has no such target, or if nothing finite was
            left: the caller must then not step.
        """
        ...

    def fragments(self, method: TrainingMethod) -> list[Fragment]:
        """This process's part of master weights and AdamW state, as views to read or write.

        Optimizers that have not stepped get their zero moments first.
        """
        ...

    def after_load(self, method: TrainingMethod) -> None:
        """Bring master weights that were written into fragments to where they compute."""
        ...

    def full_weights(self, method: TrainingMethod, role: str) -> dict[str, Tensor] | None:
        """A role's weights, bf16 on the CPU, by native name; None on all processes but the first.

        Args:
            method: the training method.
            role: name of the role.
        """
        ...

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over processes, on the CPU; the values themselves where there is one process."""
        ...

    def gather(self, item: Item) -> list[Item]:
        """Every process's item, by rank, on every process."""
        ...

    def barrier(self) -> None:
        """Wait for all processes."""
        ...

    def memory_gb(self) -> float:
        """Peak memory of the device; on a CPU the peak resident memory of the process."""
        ...

    def close(self) -> None:
        """Leave the process group."""
        ...


class PlainEngine:
    """accelerate without DeepSpeed: one process on one device.

    Master weights are the model's own fp32 parameters; `bf16` autocasts the forward pass.
    """

    name = "plain"
    rank = 0
    world_size = 1
    processes_per_host = 1

    def __init__(self, precision: str, cpu_threads: int, *, gpu: bool, exact: bool = True) -> None:
        """Choose the device; `exact` as for `fix_arithmetic`.

        Raises:
            UserError: a GPU was asked for and there is none.
        """
        fix_arithmetic(cpu_threads, gpu=gpu, exact=exact)
        with without_them():
            self.accelerator = Accelerator(
                cpu=not gpu,
                mixed_precision="bf16" if precision == "bf16" else "no",
                **explicit_choices(1),
            )

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def start_device(self) -> torch.device:
        """The device: the master weights stay as they are built."""
        return self.device

    def state_bytes(self, parameters: int) -> int:
        """Weights, gradients and two moments in fp32, and autocast's bf16 copy of the weights."""
        copies = 2 if self.accelerator.mixed_precision == "bf16" else 0
        return parameters * (4 * FP32_BYTES + copies)

    def prepare(self, method: TrainingMethod) -> None:
        """Move the method's models to the device and let this engine run its backward passes."""
        for name, role in method.all_roles.items():
            if not isinstance(role, TrainedRole):
                method.replace_role(name, self.accelerator.prepare(role.model))
                continue
            fuse(role.optimizer, self.device)
            method.replace_role(name, *self.accelerator.prepare(role.model, role.optimizer))
        method.run_backward = self.accelerator.backward
        method.autocast = self.accelerator.autocast

    def backward(
        self,
        method: TrainingMethod,
        loss_map: LossMap,
        outputs: Outputs,
        share: float,
        *,
        last: bool,
    ) -> None:
        """Accumulate into the parameters' gradients."""
        method.backward(loss_map, outputs, 1 / share)

    def clip(self, method: TrainingMethod, iteration: int, max_norm: float) -> float:
        """Clip each target's gradients; returns the norm over all of them before that."""
        sanitized = method.get_grad_sanitize_targets(iteration)
        norms = []
        for name, target in method.get_grad_clip_targets(iteration).items():
            gradients = [p.grad for p in target if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            if not norm.isfinite() and name in sanitized:
                allowed = [p.grad for p in sanitized[name] if p.grad is not None]
                norm = sanitized_norm(name, iteration, allowed, gradients, norm)
            torch.nn.utils.clip_grads_with_norm_(target, max_norm, norm)
            norms.append(float(norm))
        return math.hypot(*norms)

    def fragments(self, method: TrainingMethod) -> list[Fragment]:
        """Every trained tensor, whole."""
        method.seed_optimizer_state_for_resume()
        return [
            Fragment(f"{role}/{name}:{kind}", tuple(values.shape), 0, values.detach().view(-1))
            for role, trained in method.trained.items()
            for name, parameter in trained.model.named_parameters()
            if parameter.requires_grad
            for kind, values in _tensors(parameter, trained.optimizer).items()
        ]

    def after_load(self, method: TrainingMethod) -> None:
        """Nothing: the model computes with its master weights."""

    def full_weights(self, method: TrainingMethod, role: str) -> dict[str, Tensor] | None:
        """The role's weights, bf16 on the CPU."""
        return bf16_weights(method.inference_checkpoint_modules(role)["transformer"])

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The values themselves, on the CPU."""
        return values.cpu()

    def gather(self, item: Item) -> list[Item]:
        """The one item."""
        return [item]

    def barrier(self) -> None:
        """Nothing to wait for."""

    def memory_gb(self) -> float:
        """Peak memory of the device; on a CPU the peak resident memory of the process."""
        return peak_memory_gb(self.device)

    def close(self) -> None:
        """Nothing to part from."""


def explicit_choices(rounds: int) -> dict[str, Any]:
    """What accelerate would otherwise take from the environment.

    Args:
        rounds: micro-batches that accelerate divides a loss by.
    """
    return {
        "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=rounds),
        "dynamo_plugin": TorchDynamoPlugin(
            backend="no", mode="default", fullgraph=False, use_regional_compilation=False
        ),
    }


def fix_arithmetic(cpu_threads: int, *, gpu: bool, exact: bool = True) -> None:
    """Make sums repeat: their order is fixed on the CPU, and on the GPU if `exact`.

    Raises:
        UserError: a GPU was asked for and there is none.
    """
    if gpu and not torch.cuda.is_available():
        raise UserError(
            "hardware.gpus_per_node asks for a GPU and torch finds none here: run on a GPU "
            "node, or set hardware.gpus_per_node to 0 to train on the CPU"
        )
    # Sums on the CPU depend on the number of threads: it is a setting, not the machine's.
    torch.set_num_threads(cpu_threads)
    torch.use_deterministic_algorithms(exact or not gpu)
    # New memory is always written before it is read: filling it first only costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if gpu:
        choose_kernels_by_rule(exact)


def choose_kernels_by_rule(by_rule: bool) -> None:
    """Whether torch's compiler takes kernels by rule instead of by timing them.

    Those it times round differently (matrices padded or not), and each process may find another
    one faster: only a kept cache would make it choose the same again. Not every torch has the rule.
    """
    from torch._inductor import config  # late: CPUs need none of it

    if hasattr(config, "deterministic"):
        config.deterministic = by_rule


def fuse(optimizer: Optimizer, device: torch.device) -> None:
    """On a GPU let AdamW update in one kernel: the other ways need copies of all moments."""
    if device.type == "cuda":
        for group in optimizer.param_groups:
            group.update(fused=True, foreach=False)


def bf16_weights(model: nn.Module) -> dict[str, Tensor]:
    """All parameters of a model by name, bf16 on the CPU."""
    return {n: p.detach().to("cpu", torch.bfloat16) for n, p in model.named_parameters()}


def peak_memory_gb(device: torch.device) -> float:
    """Peak memory of a GPU in GB; on a CPU the peak resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _tensors(parameter: nn.Parameter, optimizer: Any) -> dict[str, Tensor]:
    """A parameter's weight and AdamW state by kind."""
    state = optimizer.state[parameter]
    return {"weight": parameter, **{kind: state[kind] for kind in MOMENTS}}
