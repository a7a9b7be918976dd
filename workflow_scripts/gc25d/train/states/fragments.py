"""A process's share of a training state, by name: what is saved, and what loading writes into.

Under ZeRO-2 a process holds a contiguous part of the flattened parameters, so its share of a tensor
is a run of its flat values; a process on its own holds every tensor whole. A state saved by N
processes is read by M of them through these places alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

WEIGHT, EMA = "weight", "ema"
VALUE_BYTES = 4  # float32


@dataclass(frozen=True)
class Fragment:
    """A contiguous part of a named tensor's values."""

    name: str
    """`<role>/<parameter>:<kind>` with kind `weight`, `exp_avg`, `exp_avg_sq`, `step` or `ema`."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    """Number of the first value in the flattened tensor."""
    values: Tensor
    """float32 [n]: a view of the live state, so that writing into it loads it."""

    @property
    def stop(self) -> int:
        """Number of the value after the last one."""
        return self.start + self.values.numel()

    @property
    def whole(self) -> bool:
        """Whether it is all of its tensor."""
        return self.values.numel() == math.prod(self.shape)


def kind_of(name: str) -> str:
    """`weight`, `exp_avg`, `exp_avg_sq`, `step` or `ema`."""
    return name.rpartition(":")[2]


def parameter_of(name: str) -> str:
    """`<role>/<parameter>`."""
    return name.rpartition(":")[0]


def total_bytes(fragments: Iterable[Fragment]) -> int:
    """What these fragments take on disk, headers aside."""
    return VALUE_BYTES * sum(fragment.values.numel() for fragment in fragments)
