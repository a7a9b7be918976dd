"""What the trainer and the gradient check know of a training method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch

LossMap: TypeAlias = Mapping[str, Tensor]
Outputs: TypeAlias = Mapping[str, Any]
Metrics: TypeAlias = Mapping[str, Tensor]
TOTAL_LOSS = "total_loss"


class TrainingMethod(ABC):
    """Owns role models and their optimizers; draws all its randomness from one generator.

    The generator lies on the CPU, so that every device sees the same draws, and is re-seeded for
    each sample: its state never needs saving.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator("cpu")
        self.run_backward: Callable[[Tensor], None] = torch.Tensor.backward

    @property
    @abstractmethod
    def roles(self) -> dict[str, nn.Module]:
        """The models by role; the trainable ones are those with an optimizer."""

    @abstractmethod
    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Forward one micro-batch; `loss_map["total_loss"]` is what `backward` differentiates.

        Metrics are detached tensors on the model's device; no value is read back.
        """

    @abstractmethod
    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """The optimizers that step at this iteration."""

    @abstractmethod
    def get_lr_schedulers(self, iteration: int) -> list[LambdaLR]:
        """The schedulers that step at this iteration, in the optimizers' order."""

    @abstractmethod
    def replace_role(self, role: str, model: nn.Module, optimizer: Optimizer) -> None:
        """Put the engine's wrapped model and optimizer in place of a role's own."""

    def on_train_start(self) -> None:
        """Seed the generator; called once before the first step."""
        self.generator.manual_seed(self.seed)

    def resume_schedules(self, step: int) -> None:
        """Set the learning rates to what they are after `step` optimizer steps."""
        for scheduler in self.get_lr_schedulers(step):
            scheduler.last_epoch = step
            groups = scheduler.optimizer.param_groups
            rates = zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            for group, base, factor in rates:
                group["lr"] = base * factor(step)

    def backward(self, loss_map: LossMap, outputs: Outputs, grad_accum_rounds: float) -> None:
        """Accumulate gradients of the total loss divided by `grad_accum_rounds`.

        The divisor is the step's samples over the micro-batch's, so that micro-batches of unequal
        size (an epoch's tail) weigh as their samples do.
        """
        self.run_backward(loss_map[TOTAL_LOSS] / grad_accum_rounds)

    def get_grad_clip_targets(self, iteration: int) -> dict[str, list[nn.Parameter]]:
        """Parameters whose gradients are clipped together, by role."""
        return {
            role: [p for p in model.parameters() if p.requires_grad]
            for role, model in self.roles.items()
        }

    def optimizers_zero_grad(self, iteration: int) -> None:
        """Drop the gradients of the optimizers that step at this iteration."""
        for optimizer in self.get_optimizers(iteration):
            optimizer.zero_grad(set_to_none=True)

    def optimizers_schedulers_step(self, iteration: int) -> None:
        """Step the optimizers, then their schedulers."""
        for optimizer in self.get_optimizers(iteration):
            optimizer.step()
        for scheduler in self.get_lr_schedulers(iteration):
            scheduler.step()
