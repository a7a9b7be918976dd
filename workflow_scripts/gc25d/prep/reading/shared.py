"""Anonymous memory that a process shares with its workers; it has no name and leaves no file.

`multiprocessing`'s own blocks are cleared by the process that makes them, which for the clips of a
dozen readers takes seconds, and named ones live in /dev/shm, which containers keep small.
"""

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Self

import numpy as np
from jaxtyping import UInt8


class SharedBytes:
    """Zero at first. Pages are allocated on first use and freed when the last process ends."""

    def __init__(self, size: int) -> None:
        self._descriptor = _nameless_file()
        os.ftruncate(self._descriptor, size)
        self._size = size
        self._map = mmap.mmap(self._descriptor, size)

    @property
    def bytes(self) -> UInt8[np.ndarray, " size"]:
        """All of it; writable."""
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Close the descriptor: later processes cannot get the memory, earlier ones keep it."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, int]]:
        """Pickled as an argument of a process that is being started, and only there."""
        return _attach, (reduction.DupFd(self._descriptor), self._size)


def _attach(descriptor: Any, size: int) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared._descriptor = descriptor.detach()
    shared._size = size
    shared._map = mmap.mmap(shared._descriptor, size)
    return shared


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gc25d-clips")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
