"""What a method may log to by itself, beside the metrics that it returns."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class Tracker(Protocol):
    """The trainer's: TensorBoard on the first process, nothing on the others."""

    def log(self, values: Mapping[str, float | Tensor], step: int) -> None:
        """Log scalars as `method/<name>` at the 1-based optimizer step `step`."""
        ...


class NoTracker:
    """Of a method that nobody gave a tracker."""

    def log(self, values: Mapping[str, float | Tensor], step: int) -> None:
        """Log nothing."""
