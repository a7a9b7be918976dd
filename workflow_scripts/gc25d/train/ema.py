"""An exponential moving average of the weights, on this process's fragments.

a_0 = w_0 and a_t = d·a_{t−1} + (1 − d)·w_t after optimizer step t, in float32. Starting from the
initial weights, the average needs no correction for its bias: it weighs w_0 with d^t, which is what
it says. With d = 0.999 a weight's share halves every 693 steps (ln 2 / −ln d).
"""

from collections.abc import Iterable, Sequence

import torch

from gc25d.methods.roles import STUDENT
from gc25d.train.states.fragments import EMA, WEIGHT, Fragment, kind_of, parameter_of


class Ema:
    """The averages of the weights that this process holds.

    They are part of the state: `fragments` are saved and loaded with the rest, so that a resume
    goes on exactly, on any number of processes.
    """

    def __init__(self, fragments: Iterable[Fragment], decay: float) -> None:
        """Start from the weights as they are.

        Args:
            fragments: of the live state; those of other kinds than weights are passed over.
            decay: d above, in [0, 1).
        """
        self.decay = decay
        self._weights = [held for held in fragments if kind_of(held.name) == WEIGHT]
        self._averages = [
            held.values.detach().to(torch.float32, copy=True) for held in self._weights
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after an optimizer step."""
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.lerp_(weight.values.float(), 1 - self.decay)

    def fragments(self) -> list[Fragment]:
        """Views of the averages, named `<role>/<parameter>:ema`."""
        return [
            Fragment(f"{parameter_of(held.name)}:{EMA}", held.shape, held.start, average)
            for held, average in zip(self._weights, self._averages, strict=True)
        ]


def with_average(
    fragments: Sequence[Fragment], decay: float, role: str = STUDENT
) -> tuple[list[Fragment], Ema | None]:
    """A live state's fragments with those of one role's average; only the former for a decay of 0.

    Args:
        fragments: of the live state.
        decay: of the average.
        role: whose weights are averaged.
    """
    if not decay:
        return list(fragments), None
    ema = Ema((held for held in fragments if held.name.startswith(f"{role}/")), decay)
    return [*fragments, *ema.fragments()], ema
