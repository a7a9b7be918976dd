"""A process's share of a training state, by name: what is saved, and what loading writes into.

Under ZeRO-2 a process holds a contiguous part of the flattened parameters, so its share of a tensor
is a run of its flat values; a process on its own holds every tensor whole. A state saved by N
processes is read by M of them through these places alone.
"""

from dataclasses import dataclass

from torch import Tensor


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
