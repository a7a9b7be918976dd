"""Learning rates that change under a run (train.reset_lr_on_resume). Imports no torch.

A run stays bound to the rates that it was started with; the others reach the trainer as arguments.
Each start of the trainer writes its rates into the run's history, and from there comes which rates
each step was trained with: a resume from before a change changes them again at the same step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

RATES = ("lr", "cond_lr")


@dataclass(frozen=True)
class RateChange:
    """The rates after warm-up from an optimizer step on."""

    step: int
    """The first step with them, 1-based."""
    lr: float
    cond_lr: float

    @classmethod
    def at(cls, step: int, settings: Mapping[str, Any]) -> Self:
        """With the rates of `settings`, which holds others too."""
        return cls(step, float(settings["lr"]), float(settings["cond_lr"]))

    @property
    def rates(self) -> tuple[float, float]:
        """Of the transformer and of the semantic condition."""
        return self.lr, self.cond_lr


def with_bound_rates(asked: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the train step with the rates of those that the run is bound to."""
    kept = {name: bound["train"][name] for name in RATES}
    return {**asked, "train": {**asked["train"], **kept}}


def rate_changes(events: Iterable[Mapping[str, Any]], first: RateChange) -> list[RateChange]:
    """The rates of a run, in the order of their steps, from its history; `first` starts it.

    A start that asks for other rates than the last known changes them for the steps after the one
    that it goes on from, and what was known of later steps no longer holds.
    """
    known = [first]
    for event in events:
        if event.get("event") in ("start", "resume") and set(RATES) <= event.keys():
            known = with_change(known, RateChange.at(event["step"] + 1, event))
    return known


def with_change(known: Sequence[RateChange], asked: RateChange) -> list[RateChange]:
    """`known` and what a start asks for."""
    if asked.rates == known[-1].rates:
        return list(known)
    before = [known[0], *(change for change in known[1:] if change.step < asked.step)]
    return before if asked.rates == before[-1].rates else [*before, asked]


def rates_of(known: Sequence[RateChange], step: int) -> tuple[float, float]:
    """The rates of an optimizer step (1-based)."""
    return next((c.rates for c in reversed(known) if c.step <= step), known[0].rates)


def changes_up_to(known: Sequence[RateChange], step: int) -> list[dict[str, Any]]:
    """What done.json and an export's metadata say: the changes that `step` steps have seen."""
    return [asdict(change) for change in known[1:] if change.step <= step]
