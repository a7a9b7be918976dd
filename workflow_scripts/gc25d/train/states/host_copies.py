"""Host memory into which a state is copied before it is written; pinned for a GPU, and reused."""

import logging
import queue
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import torch
from torch import Tensor

from gc25d.train.states.format import Part
from gc25d.train.states.fragments import VALUE_BYTES
from gc25d.train.states.storage import available_memory, in_gb

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
"""Of the free memory that copies may take."""


class HostCopies:
    """Buffers for the parts of a state; with one for each part, saving does not wait for the disk.

    With fewer, `copy` waits until a part was written: slower, and never more memory than allowed.
    """

    def __init__(self, parts: list[Part], device: torch.device, processes: int) -> None:
        """Decide how many there will be.

        Args:
            parts: of the states to come, which are all alike.
            device: where their values are.
            processes: how many on this host do the same at the same time.
        """
        self.capacity = max((part.values for part in parts), default=1)
        self.device = device
        self.count = self._affordable(len(parts), processes)
        self._free: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def _affordable(self, wanted: int, processes: int) -> int:
        one, available = VALUE_BYTES * self.capacity, available_memory()
        if available is None:
            return wanted
        count = max(1, min(wanted, int(MEMORY_SHARE * available) // (processes * one)))
        if count < wanted:
            logger.warning(
                "a state is copied to host memory before it is written: needs %s, available are "
                "%s for %d process(es): training waits for the disk at every save. Ask for more "
                "memory, or raise train.save_every",
                *(in_gb(wanted * one), in_gb(available), processes),
            )
        return count

    def allocate(self, pool: Executor) -> None:
        """Allocate all of them, side by side."""
        for buffer in pool.map(lambda _: self._buffer(), range(self.count)):
            self._free.put(buffer)

    def _buffer(self) -> Tensor:
        if self.device.type == "cuda":
            try:
                # A thread starts on the first GPU: pinning there would open a context on it.
                with torch.cuda.device(self.device):
                    return torch.empty(self.capacity, dtype=torch.float32, pin_memory=True)
            except RuntimeError as error:
                logger.warning("host memory could not be pinned (%s): saves take longer", error)
        # Written once now, so that the first save does not wait for the system's pages.
        buffer = torch.empty(self.capacity, dtype=torch.float32)
        # By numpy: torch would start a second set of OpenMP threads for this thread, and with more
        # threads than cores OpenMP lets those of the training sleep between any two operations.
        buffer.numpy().fill(0)
        return buffer

    def copy(self, part: Part) -> Tensor:
        """A buffer that holds the part's values; returns when they are there."""
        buffer = self._free.get()
        offset = 0
        for fragment in part.fragments:
            end = offset + fragment.values.numel()
            buffer[offset:end].copy_(fragment.values.detach().reshape(-1), non_blocking=True)
            offset = end
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return buffer

    @contextmanager
    def lent(self, buffer: Tensor) -> Iterator[Tensor]:
        """Use a buffer, then give it back."""
        try:
            yield buffer
        finally:
            self._free.put(buffer)
