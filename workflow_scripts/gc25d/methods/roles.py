"""Role models: a network with, if it is trained, its AdamW and its warm-up."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.errors import UserError
from gc25d.model.weights.names import CONDITION_PREFIX
from gc25d.sampling import flow

STUDENT, TEACHER, CRITIC = "student", "teacher", "critic"
BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up, then constant rates."""

    lr: float = 1e-5
    cond_lr: float = 1e-4
    weight_decay: float = 0.01
    warmup_steps: int = 500
    low_precision_masters: bool = False
    """Whether the trained weights themselves may be below float32."""


@dataclass
class Role:
    """One network of a method, frozen unless it is a `TrainedRole`."""

    model: nn.Module
    base_path: str = ""
    """Where its weights came from: a directory or file, "" for a seed."""


@dataclass
class TrainedRole(Role):
    """A network with its optimizer and schedule."""

    optimizer: Optimizer = field(kw_only=True)
    scheduler: LambdaLR = field(kw_only=True)
    configured_lrs: tuple[float, ...] = field(kw_only=True)
    """Rates of the optimizer's groups after warm-up."""
    low_precision_masters: bool = field(kw_only=True, default=False)
    """Whether its weights may be below float32."""


def trainable_role(model: nn.Module, config: OptimizerConfig, base_path: str = "") -> TrainedRole:
    """A network with AdamW over its trainable parameters and a linear warm-up."""
    optimizer = AdamW(parameter_groups(model, config), betas=BETAS)
    scheduler = LambdaLR(optimizer, lambda step: flow.warmup_factor(step, config.warmup_steps))
    rates = tuple(float(rate) for rate in scheduler.base_lrs)
    return TrainedRole(
        model,
        base_path,
        optimizer=optimizer,
        scheduler=scheduler,
        configured_lrs=rates,
        low_precision_masters=config.low_precision_masters,
    )


def frozen_role(model: nn.Module, base_path: str = "") -> Role:
    """A network in inference mode whose parameters take no gradient."""
    return Role(model.eval().requires_grad_(False), base_path)


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, object]]:
    """The transformer at `lr`, then the semantic condition (if any) at `cond_lr`."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    base = [p for n, p in trainable if not n.startswith(CONDITION_PREFIX)]
    condition = [p for n, p in trainable if n.startswith(CONDITION_PREFIX)]
    groups = [{"params": base, "lr": config.lr, "name": "dit"}]
    if condition:
        groups.append({"params": condition, "lr": config.cond_lr, "name": "gc_sem_cond"})
    return [{**group, "weight_decay": config.weight_decay} for group in groups]


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that take gradients."""
    return [p for p in model.parameters() if p.requires_grad]


def refuse_low_precision(name: str, model: nn.Module) -> None:
    """Refuse master weights that an optimizer step of 1e-5 would not move.

    Raises:
        UserError: a trainable parameter is not float32 (or wider); names the first.
    """
    for key, parameter in model.named_parameters():
        if parameter.requires_grad and torch.finfo(parameter.dtype).bits < 32:
            raise UserError(
                f"role {name}: trainable {key} is {parameter.dtype}, expected float32 master "
                "weights: load the model in float32 (train.precision chooses the arithmetic), or "
                "allow it with train.master_weights: bf16"
            )


def moments_of(parameter: nn.Parameter, group: dict[str, object]) -> dict[str, torch.Tensor]:
    """What AdamW holds of a parameter before its first step: zeros."""
    on_device = bool(group.get("capturable") or group.get("fused"))
    device = parameter.device if on_device else torch.device("cpu")
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
