"""What the trainer and the gradient check know of a training method.

The trainer (gc25d/train/) calls every hook, with two exceptions. `checkpoint_state` is for torch's
DCP: states here are the engines' own fragments. The synchronisation hooks, which it does call, act
on FSDP2's modules alone, of which our engines have none. tests/methods/test_fsdp.py calls both with
the real thing, DCP and FSDP2 on two processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.dataset.batch import Batch
from gc25d.dataset.draws import torch_seed
from gc25d.errors import UserError
from gc25d.methods.metrics import mean_metrics
from gc25d.methods.roles import (
    STUDENT,
    Role,
    TrainedRole,
    moments_of,
    refuse_low_precision,
    trainable_parameters,
)
from gc25d.methods.state import SeedState, role_states, set_position
from gc25d.methods.tracker import NoTracker, Tracker

LossMap: TypeAlias = Mapping[str, Tensor]
Outputs: TypeAlias = Mapping[str, Any]
Metrics: TypeAlias = Mapping[str, Tensor]
TOTAL_LOSS = "total_loss"
DENSE = "dense"


class TrainingMethod(ABC):
    """Owns role models and their optimizers; draws all its randomness from one generator.

    The generator lies on the CPU, so that every device sees the same draws. It is re-seeded from
    (seed, epoch, index) for what belongs to a sample and from (seed, step) for a method's own
    draws: its state never needs saving, and ranks agree on whatever they share.
    """

    loss_roles: ClassVar[Mapping[str, str]] = {TOTAL_LOSS: STUDENT}
    """Each loss that `single_train_step` may return → the role that it trains."""
    manages_optimization: ClassVar[bool] = False
    """Whether the trainer calls `managed_train_step` and nothing else (RL-style methods)."""
    requires_fp32_master_weights: ClassVar[bool] = True
    """Whether trainable weights below float32 are refused; a role whose configuration allows them
    (`OptimizerConfig.low_precision_masters`, the setting train.master_weights) may have them."""

    def __init__(self, seed: int, roles: Mapping[str, Role]) -> None:
        """Take the roles, the student first.

        Raises:
            UserError: master weights of too low a precision.
        """
        self.seed = seed
        self.generator = torch.Generator("cpu")
        self.tracker: Tracker = NoTracker()
        self.all_roles = dict(roles)
        self.run_backward: Callable[[Tensor], None] = torch.Tensor.backward
        self.role_backward: dict[str, Callable[[Tensor], None]] = {}
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        """The engine's arithmetic, for passes that are not a model's own call."""
        if self.requires_fp32_master_weights:
            for name, role in self.trained.items():
                if not role.low_precision_masters:
                    refuse_low_precision(name, role.model)

    @property
    def roles(self) -> dict[str, nn.Module]:
        """The models by role, the student first, frozen ones too."""
        return {name: role.model for name, role in self.all_roles.items()}

    @property
    def trained(self) -> dict[str, TrainedRole]:
        """The roles that have an optimizer."""
        return {n: role for n, role in self.all_roles.items() if isinstance(role, TrainedRole)}

    def replace_role(self, role: str, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Put the engine's wrapped model (and optimizer) in place of a role's own."""
        kept = self.all_roles[role]
        kept.model = model
        if isinstance(kept, TrainedRole) and optimizer is not None:
            kept.optimizer = optimizer

    # One training step

    @abstractmethod
    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Forward one micro-batch of the 0-based optimizer step `iteration`.

        Returns:
            The losses that `backward` differentiates, all scalars and only those of this
            iteration; outputs for inspection; metrics, detached scalars on the model's device:
            `loss`, where there are such values `mse`, `timestep`, `sem_rms` and `x_rms`, and any of
            the method's own, which become columns of train_log.csv and TensorBoard's `train/…`.
            A step that lacks one has an empty cell. No value is read back.
        """

    def managed_train_step(
        self, batches: Sequence[Batch], iteration: int
    ) -> tuple[LossMap, Outputs, Metrics]:
        """Do a whole optimizer step on its micro-batches: forward, backward, clipping, update.

        The trainer calls nothing else of a method that `manages_optimization`. By default each
        micro-batch goes through `single_train_step`, which then does all of that itself.

        Returns:
            As `single_train_step`: losses and outputs of the last micro-batch, metrics averaged
            over samples. `grad_norm` may be among the metrics.
        """
        taken = [self.single_train_step(batch, iteration) for batch in batches]
        losses, outputs, metrics = taken[-1]
        if len(taken) == 1:
            return losses, outputs, metrics
        sizes = [len(batch) for batch in batches]
        found = [metrics for _, _, metrics in taken]
        return losses, outputs, mean_metrics(found, sizes)

    def backward(self, loss_map: LossMap, outputs: Outputs, grad_accum_rounds: float) -> None:
        """Accumulate the gradients of every loss divided by `grad_accum_rounds`.

        The divisor is the step's samples over the micro-batch's, so that micro-batches of unequal
        size (an epoch's tail) weigh as their samples do. A role's entry in `role_backward` (an
        engine of its own) goes before `run_backward`.
        """
        for name, loss in loss_map.items():
            run = self.role_backward.get(self.loss_roles[name], self.run_backward)
            run(loss / grad_accum_rounds)

    # Optimizers

    def stepping_roles(self, iteration: int) -> tuple[str, ...]:
        """The trained roles whose optimizers step at this iteration; all of them by default."""
        return tuple(self.trained)

    def updates_before(self, role: str, step: int) -> int:
        """How often a role's optimizer has stepped in the first `step` iterations."""
        return step

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """The optimizers that step at this iteration, in the roles' order."""
        return [self.trained[name].optimizer for name in self.stepping_roles(iteration)]

    def get_lr_schedulers(self, iteration: int) -> list[LambdaLR]:
        """The schedulers that step at this iteration, in the optimizers' order."""
        return [self.trained[name].scheduler for name in self.stepping_roles(iteration)]

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

    def get_grad_clip_targets(self, iteration: int) -> dict[str, list[nn.Parameter]]:
        """Parameters of the stepping roles; each role's gradients are clipped together."""
        return {
            name: trainable_parameters(self.trained[name].model)
            for name in self.stepping_roles(iteration)
        }

    def get_grad_sanitize_targets(self, iteration: int) -> dict[str, list[nn.Parameter]]:
        """Parameters whose non-finite gradients become 0 before clipping; all that are clipped.

        The engine warns when it does so. A gradient that is not finite and has no target ends the
        run with an error, and so does a step in which nothing finite is left.
        """
        return self.get_grad_clip_targets(iteration)

    # Start, validation and resume

    def on_train_start(self) -> None:
        """Seed the generator; called once before the first step. Ranks share the seed."""
        self.generator.manual_seed(self.seed)

    def set_tracker(self, tracker: Tracker) -> None:
        """Take what the method may log to by itself, `self.tracker`; called before training."""
        self.tracker = tracker

    def on_validation_begin(self, iteration: int) -> Metrics | None:
        """Called before each validation with the iteration just done, −1 before the first.

        Returns:
            Metrics to log with the validation: columns of val_log.csv and TensorBoard's `val/…`,
            those of the first process; None or none by default. It must leave nothing behind that
            a later step depends on.
        """
        return None

    def draw_ahead(self, batch: Batch) -> Batch:
        """The batch with what belongs to its samples drawn, on the CPU; unchanged by default.

        The feed's threads call it while the step before runs: it must not use the shared generator.
        """
        return batch

    def sample_generator(self, purpose: str, epoch: int, index: int) -> torch.Generator:
        """The generator, re-seeded for what belongs to a sample."""
        return self.generator.manual_seed(torch_seed(self.seed, purpose, epoch, index))

    def fresh_generator(self, purpose: str, epoch: int, index: int) -> torch.Generator:
        """A generator that draws what `sample_generator` does, for use in another thread."""
        return torch.Generator("cpu").manual_seed(torch_seed(self.seed, purpose, epoch, index))

    def step_generator(self, purpose: str, step: int) -> torch.Generator:
        """The generator, re-seeded for a draw that all samples and ranks of a step share."""
        return self.generator.manual_seed(torch_seed(self.seed, purpose, step))

    def resume_schedules(self, step: int) -> None:
        """Set the learning rates to what they are after `step` iterations."""
        for name, role in self.trained.items():
            set_position(role.scheduler, self.updates_before(name, step))

    def apply_configured_lrs(self) -> None:
        """Go to the configured rates where something loaded or trained before brought others.

        The trainer calls it where train.reset_lr_on_resume changes the rates under a run, trainers
        that load optimizers whole after each resume. The position in the warm-up stays.
        """
        for role in self.trained.values():
            scheduler = role.scheduler
            scheduler.base_lrs = list(role.configured_lrs)
            for group, rate in zip(role.optimizer.param_groups, role.configured_lrs, strict=True):
                group["initial_lr"] = rate
            set_position(scheduler, scheduler.last_epoch)

    def seed_optimizer_state_for_resume(self) -> None:
        """Give optimizers that have not stepped zero moments for a loader to write into.

        A fresh AdamW has none, and DCP, which loads only what it finds, would drop the saved ones
        in silence.
        """
        for role in self.trained.values():
            optimizer = role.optimizer
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if not optimizer.state.get(parameter):
                        optimizer.state[parameter] = moments_of(parameter, group)

    def checkpoint_state(self) -> dict[str, Stateful]:
        """The trainable roles' state for DCP.

        Keys: `roles.<role>.transformer`, `optimizers.<role>`, `schedulers.<role>` and
        `random_state.seed`.
        """
        states: dict[str, Stateful] = {"random_state.seed": SeedState(self.seed)}
        for name, role in self.trained.items():
            states |= role_states(name, role)
        return states

    def inference_checkpoint_modules(self, role: str) -> dict[str, nn.Module]:
        """The complete modules of a role, frozen parameters too, by name.

        Raises:
            UserError: an unknown role; lists the known ones.
        """
        return {"transformer": self._known(role).model}

    def inference_checkpoint_base_model_path(self, role: str) -> str:
        """Where a role's weights came from; "" for a seed.

        Raises:
            UserError: an unknown role; lists the known ones.
        """
        return self._known(role).base_path

    def _known(self, role: str) -> Role:
        if role not in self.all_roles:
            raise UserError(f"role {role!r} is unknown: choose one of {', '.join(self.all_roles)}")
        return self.all_roles[role]

    # What the engine asks of the models

    @property
    def attention_kind(self) -> str:
        """`dense`, or the sparse kind that the student's back end names."""
        return str(getattr(self.roles[STUDENT], "attention_kind", DENSE))

    @property
    def supports_gradient_accumulation_no_sync(self) -> bool:
        """Whether all but a step's last micro-batch may leave out gradient synchronisation.

        A model opts in by an attribute of this name: every micro-batch must use the same
        parameters.
        """
        name = "supports_gradient_accumulation_no_sync"
        return all(getattr(role.model, name, False) for role in self.trained.values())

    def set_requires_gradient_sync(self, required: bool, iteration: int) -> None:
        """FSDP2: whether this iteration's backward passes reduce gradients.

        On each sharded module of the roles that step at `iteration` once; all others are left
        alone: a role that does not learn now has no gradients to reduce.
        """
        for module in self._modules("set_requires_gradient_sync", iteration):
            module.set_requires_gradient_sync(required, recurse=False)

    def set_is_last_backward(self, last: bool, iteration: int) -> None:
        """FSDP2: whether the next backward pass is the step's last; on the same modules."""
        for module in self._modules("set_is_last_backward", iteration):
            module.set_is_last_backward(last)

    def _modules(self, method: str, iteration: int) -> Iterator[Any]:
        """The modules that have `method`, each once, of the roles that step at `iteration`."""
        found = {
            id(module): module
            for name in self.stepping_roles(iteration)
            for module in self.trained[name].model.modules()
            if hasattr(module, method)
        }
        yield from found.values()
