"""Bringing a method's learning rates to those that a run has at a step (gc25d.settings.rates)."""

import logging
from collections.abc import Sequence
from pathlib import Path

from gc25d.errors import UserError
from gc25d.methods.base import TrainingMethod
from gc25d.methods.roles import STUDENT
from gc25d.settings.rates import RateChange, rate_changes, rates_of, with_change
from gc25d.settings.steps import TrainStep
from gc25d.train.history.events import events

logger = logging.getLogger(__name__)


class RateResets:
    """Sets the student's rates where they differ from those that it has."""

    def __init__(self, method: TrainingMethod, known: Sequence[RateChange]) -> None:
        self.method, self.known = method, known
        self.current = known[0].rates

    def __call__(self, step: int) -> None:
        """Before the optimizer step `step` (1-based)."""
        wanted = rates_of(self.known, step)
        if wanted == self.current:
            return
        role = self.method.trained[STUDENT]
        role.configured_lrs = wanted[: len(role.configured_lrs)]
        self.method.apply_configured_lrs()
        self.current = wanted
        logger.warning("from step %d on lr is %g and cond_lr %g", step, *wanted)


def known_rates(
    settings: TrainStep, run: Path, asked: tuple[float, float] | None, start: int, *, aside: bool
) -> list[RateChange]:
    """The rates of all steps of a run whose training goes on after step `start`.

    Args:
        settings: of the run, with the rates that it was started with.
        run: its folder.
        asked: the rates from here on; None where the settings let none change.
        start: the step of the state.
        aside: whether a step behind the chain's state is trained again: with the rates of then.

    Raises:
        UserError: the rates were changed, and nobody says which are to hold now.
    """
    first = RateChange(1, settings.train.lr, settings.train.cond_lr)
    known = rate_changes(events(run), first)
    if aside:
        return known
    if asked is None and known[-1].rates != first.rates:
        last = known[-1]
        raise UserError(
            f"this run's rates were changed: from step {last.step} on lr is {last.lr:g} and "
            f"cond_lr {last.cond_lr:g}. Set train.reset_lr_on_resume to true again, with the "
            "rates that are to hold from now on"
        )
    return with_change(known, RateChange(start + 1, *(asked or first.rates)))
