"""Which samples form which optimizer step: pure arithmetic on the step number.

An epoch is a permutation of the samples, cut into rounds of global_batch / grad_accum samples; what
fills no round is left out of that epoch. A step takes grad_accum rounds; the last step of an epoch
takes what is left. Neither processes nor micro-batches nor any running state enter, so a resumed
run finds its place by a division, without reading a sample, and any number of devices agrees.
"""

from dataclasses import dataclass

import numpy as np

from gc25d.dataset.draws import generator
from gc25d.errors import UserError


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """The permutation of 0..n−1 that epoch `epoch` follows, int64 [n].

    Sorts raw Philox words, which are the same on every platform and in every numpy version.
    """
    words = generator(seed, "order", epoch).bit_generator.random_raw(n)
    return np.argsort(words, kind="stable")


@dataclass(frozen=True)
class StepSamples:
    """The samples of one optimizer step."""

    epoch: int
    indices: tuple[int, ...]
    """Sample numbers in training order; all but an epoch's last step have global_batch."""


@dataclass(frozen=True)
class Schedule:
    """The order of a whole run.

    Raises:
        UserError: the samples do not fill one round, or the batch is no multiple of grad_accum.
    """

    n: int
    """Usable training samples."""
    global_batch: int
    """Samples of a full optimizer step, over all processes."""
    grad_accum: int
    """Rounds of a full optimizer step."""
    seed: int

    def __post_init__(self) -> None:
        if self.grad_accum < 1 or self.global_batch < 1 or self.global_batch % self.grad_accum:
            raise UserError(
                f"global_batch is {self.global_batch}, expected a positive multiple of grad_accum "
                f"({self.grad_accum})"
            )
        if self.n < self.round_size:
            raise UserError(
                f"{self.n} usable training clips do not fill one round of {self.round_size} "
                f"(global_batch {self.global_batch} / grad_accum {self.grad_accum}): "
                "capture more clips, or lower train.global_batch"
            )

    @property
    def round_size(self) -> int:
        """Samples of a round, over all processes."""
        return self.global_batch // self.grad_accum

    @property
    def rounds(self) -> int:
        """Full rounds of an epoch."""
        return self.n // self.round_size

    @property
    def used(self) -> int:
        """Samples an epoch uses: the full rounds'."""
        return self.rounds * self.round_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch, its shorter last one included."""
        return -(-self.rounds // self.grad_accum)

    def step(self, s: int) -> StepSamples:
        """The samples of optimizer step `s`, counted from 0 over the whole run."""
        epoch, places = self._places(s)
        chosen = epoch_order(self.seed, epoch, self.n)[places.start : places.stop]
        return StepSamples(epoch, tuple(chosen.tolist()))

    def step_size(self, s: int) -> int:
        """How many samples optimizer step `s` has, without looking them up."""
        return len(self._places(s)[1])

    def _places(self, s: int) -> tuple[int, range]:
        """Epoch of step `s` and its places in that epoch's order."""
        if s < 0:
            raise ValueError(f"step is {s}, expected 0 or more")
        epoch, within = divmod(s, self.steps_per_epoch)
        start = within * self.global_batch
        return epoch, range(start, min(start + self.global_batch, self.used))
