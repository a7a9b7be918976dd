"""What a method hands to torch's distributed checkpoint (DCP): one `Stateful` for each key.

Names in the states are parameter names, not positions, and sharded tensors stay sharded, so that a
state written by N processes is read by M.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gc25d.errors import UserError
from gc25d.methods.roles import TrainedRole

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class ModelState(Stateful):
    """A network's parameters and buffers by name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """Name → tensor."""
        return get_model_state_dict(self.model)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy the tensors into the network; missing or extra names are an error."""
        set_model_state_dict(self.model, state_dict, options=StateDictOptions(strict=True))


class OptimizerState(Stateful):
    """An optimizer's moments and group settings, flattened under parameter names."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """`state.<parameter>.<moment>` and `param_groups.<parameter>.<setting>` → value."""
        return get_optimizer_state_dict(self.model, self.optimizer, options=_FLAT)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put moments and group settings into the optimizer."""
        set_optimizer_state_dict(self.model, self.optimizer, state_dict, options=_FLAT)


class SchedulerState(Stateful):
    """A scheduler's position and base rates."""

    def __init__(self, scheduler: LambdaLR) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        """Steps taken and the rates after warm-up."""
        rates = torch.tensor(self.scheduler.base_lrs, dtype=torch.float64)
        return {"last_epoch": torch.tensor(self.scheduler.last_epoch), "base_lrs": rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the stored position, with the stored rates."""
        self.scheduler.base_lrs = state_dict["base_lrs"].tolist()
        set_position(self.scheduler, int(state_dict["last_epoch"]))


class SeedState(Stateful):
    """The seed: all that a stateless generator has to remember, checked on load."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def state_dict(self) -> dict[str, Any]:
        """The seed as int64."""
        return {"seed": torch.tensor(self.seed)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare.

        Raises:
            UserError: the state was trained with another seed.
        """
        stored = int(state_dict["seed"])
        if stored != self.seed:
            raise UserError(
                f"the state was trained with seed {stored}, this run's train.seed is {self.seed}: "
                "its draws would not go on; set the seed back"
            )


def set_position(scheduler: LambdaLR, updates: int) -> None:
    """Put a scheduler and its rates where they are after `updates` steps of its optimizer."""
    scheduler.last_epoch = updates
    groups = scheduler.optimizer.param_groups
    rates = zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    for group, base, factor in rates:
        group["lr"] = base * factor(updates)


def role_states(name: str, role: TrainedRole) -> dict[str, Stateful]:
    """The checkpoint entries of a trainable role."""
    return {
        f"roles.{name}.transformer": ModelState(role.model),
        f"optimizers.{name}": OptimizerState(role.model, role.optimizer),
        f"schedulers.{name}": SchedulerState(role.scheduler),
    }
