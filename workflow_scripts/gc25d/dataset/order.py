"""Which samples form which optimizer step: pure arithmetic on the step number.

An epoch is a permutation of the samples, cut into rounds of global_batch / grad_accum samples;
leftover samples are skipped in that epoch. A step takes grad_accum rounds; the last step of an
epoch takes what is left. Neither processes nor micro-batches nor any running state enter, so a
resumed run finds its place by a division, without reading a sample, and any number of devices
agrees. Processes share a step's samples out evenly: every legal number of them forms the same
steps.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from gc25d.dataset.draws import generator
from gc25d.errors import UserError


@functools.lru_cache(maxsize=2)  # sorted once an epoch, not once a micro-batch
def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """The permutation of 0..n−1 that epoch `epoch` follows, int64 [n], read-only.

    Sorts raw Philox words, which are the same on every platform and in every numpy version.
    """
    words = generator(seed, "order", epoch).bit_generator.random_raw(n)
    order = np.argsort(words, kind="stable")
    order.setflags(write=False)
    return order


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

    @property
    def legal_world_sizes(self) -> tuple[int, ...]:
        """Numbers of processes that every step divides among, the epoch's last one included."""
        last_step = self.used - (self.steps_per_epoch - 1) * self.global_batch
        common = math.gcd(self.global_batch, last_step)
        return tuple(size for size in range(1, common + 1) if common % size == 0)

    def step(self, s: int) -> StepSamples:
        """The samples of optimizer step `s`, counted from 0 over the whole run."""
        epoch, places = self._places(s)
        chosen = epoch_order(self.seed, epoch, self.n)[places.start : places.stop]
        return StepSamples(epoch, tuple(chosen.tolist()))

    def epoch(self, s: int) -> int:
        """The epoch that optimizer step `s` belongs to."""
        return self._places(s)[0]

    def step_size(self, s: int) -> int:
        """How many samples optimizer step `s` has, without looking them up."""
        return len(self._places(s)[1])

    def share(self, s: int, rank: int, world_size: int) -> tuple[int, ...]:
        """The samples of optimizer step `s` that process `rank` takes; every process as many.

        Of every round its contiguous slice; of the whole step when rounds do not divide.

        Raises:
            UserError: a step does not divide among `world_size` processes.
        """
        self.check_world_size(world_size)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, expected 0..{world_size - 1}")
        samples = self.step(s).indices
        stride = self.round_size if self.round_size % world_size == 0 else len(samples)
        part = stride // world_size
        return tuple(
            index
            for first in range(rank * part, len(samples), stride)
            for index in samples[first : first + part]
        )

    def check_world_size(self, world_size: int) -> None:
        """Refuse a number of processes that a step does not divide among.

        Raises:
            UserError: names the numbers that are legal.
        """
        if world_size not in self.legal_world_sizes:
            legal = ", ".join(map(str, self.legal_world_sizes))
            raise UserError(
                f"{world_size} processes cannot share train.global_batch {self.global_batch} in "
                f"rounds of {self.round_size} ({self.rounds} an epoch) evenly: use {legal}"
            )

    def _places(self, s: int) -> tuple[int, range]:
        """Epoch of step `s` and its places in that epoch's order."""
        if s < 0:
            raise ValueError(f"step is {s}, expected 0 or more")
        epoch, within = divmod(s, self.steps_per_epoch)
        start = within * self.global_batch
        return epoch, range(start, min(start + self.global_batch, self.used))
