"""Which GPU of its node a job may use: one lock file a GPU, held while the job works.

A scheduler hands out numbers of GPUs, not GPUs: without a claim, all jobs of a node would take the
first. Locks are named after the GPUs' own serial numbers, so jobs agree however
CUDA_VISIBLE_DEVICES or a container renumbers the devices, also on a file system that several nodes
share. The kernel drops a lock with the process that held it.

Jobs that start and read for longer than they compute may share a GPU, as many as its memory holds:
each holds a lock `<serial>.share-<place>`, and the GPU's own only while it takes that place. Nobody
joins them while a job that wants a GPU to itself waits and holds `<serial>.next`.

A job that waits has no CUDA context: it learns of the GPUs from gc25d/gpus.py, which also says what
CUDA_VISIBLE_DEVICES means to it.
"""

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gc25d.errors import UserError
from gc25d.gpus import Gpu, free_memory, visible_gpus
from gc25d.locks import locked

_POLL_S = 0.1
_WAIT_S = 3600.0
_PLACES = 8
"""Jobs that share a GPU, at most."""


@contextlib.contextmanager
def claimed_device(locks: Path | None = None, wait_s: float = _WAIT_S) -> Iterator[str]:
    """Yield `cuda:<index>` of a GPU that no other job has claimed, or `cpu` where there is none.

    Within, it is also the current CUDA device of the calling thread.

    Args:
        locks: folder of the lock files, shared by the jobs of a node; by default one in the folder
            for temporary files, which the pipeline keeps below `cache_root`.
        wait_s: seconds to wait while every visible GPU is claimed.

    Raises:
        UserError: all stayed claimed for `wait_s` seconds.
    """
    gpus = _gpus()
    if not gpus:
        yield "cpu"
        return
    with claimed(_serials(gpus), locks or _shared_locks(), wait_s) as index, _current(index):
        yield f"cuda:{index}"


@contextlib.contextmanager
def shared_device(needed: int, locks: Path | None = None, wait_s: float = _WAIT_S) -> Iterator[str]:
    """As `claimed_device`, but beside other jobs that share, where the GPU has room for them all.

    Args:
        needed: bytes of the GPU's memory that this job takes.
        locks: as for `claimed_device`.
        wait_s: seconds to wait for a place.

    Raises:
        UserError: there was no place for `wait_s` seconds.
    """
    gpus = _gpus()
    if not gpus:
        yield "cpu"
        return
    fits, locks = functools.partial(_fits, gpus, needed), locks or _shared_locks()
    with shared(_serials(gpus), locks, wait_s, fits) as index, _current(index):
        yield f"cuda:{index}"


@contextlib.contextmanager
def claimed(serials: Sequence[str], locks: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of the first free GPU of `serials`; yields its place among them.

    Raises:
        UserError: all stayed claimed for `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as turn:
            closed = dict.fromkeys(serials, False)  # to jobs that would share it
            while (index := _first_free(serials, locks, held)) is None:
                for serial in serials:
                    closed[serial] = closed[serial] or _take(f"{serial}.next", locks, turn)
                _wait_until(deadline, serials, locks)
        yield index


@contextlib.contextmanager
def shared(
    serials: Sequence[str], locks: Path, wait_s: float, fits: Callable[[int, int], bool]
) -> Iterator[int]:
    """Hold a place on a GPU that fewest share; yields its index.

    Args:
        serials: of the visible GPUs.
        locks: folder of the lock files.
        wait_s: seconds to wait for a place.
        fits: whether GPU `index` has room for another job when `place` of them share it.

    Raises:
        UserError: there was no place for `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        while (index := _joined(serials, locks, held, fits)) is None:
            _wait_until(deadline, serials, locks)
        yield index


def _joined(
    serials: Sequence[str],
    locks: Path,
    held: contextlib.ExitStack,
    fits: Callable[[int, int], bool],
) -> int | None:
    """Take the lowest free place of all GPUs that no job has to itself."""
    for place in range(_PLACES):
        for index, serial in enumerate(serials):
            with contextlib.ExitStack() as gate:
                if (
                    _take(serial, locks, gate)
                    and _take(f"{serial}.next", locks, gate)
                    and fits(index, place)
                    and _take(f"{serial}.share-{place}", locks, held)
                ):
                    return index
    return None


def _wait_until(deadline: float, serials: Sequence[str], locks: Path) -> None:
    """Sleep a little.

    Raises:
        UserError: the deadline has passed.
    """
    if time.monotonic() >= deadline:
        raise UserError(
            f"all {len(serials)} visible GPUs are claimed by other jobs (locks in {locks}):"
            " wait for one to end, or allow fewer jobs at once with --resources gpu=<count>"
        )
    time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def _first_free(serials: Sequence[str], locks: Path, held: contextlib.ExitStack) -> int | None:
    """Take the first GPU that nobody uses; None when there is none."""
    for index, serial in enumerate(serials):
        with contextlib.ExitStack() as tried:
            if _take(serial, locks, tried) and not _is_shared(serial, locks):
                held.enter_context(tried.pop_all())
                return index
    return None


def _is_shared(serial: str, locks: Path) -> bool:
    """Whether jobs share a GPU whose own lock is held, so that none can join."""
    places = [path.stem for path in locks.glob(f"{serial}.share-*.lock")]
    with contextlib.ExitStack() as tried:
        return not all(_take(place, locks, tried) for place in places)


def _take(name: str, locks: Path, held: contextlib.ExitStack) -> bool:
    """Hold a lock if it can be had at once."""
    with contextlib.suppress(UserError):
        held.enter_context(locked(locks / f"{name}.lock", wait_s=0, held="claimed"))
        return True
    return False


def _gpus() -> list[Gpu]:
    """The GPUs by torch's index; none without a GPU."""
    import torch

    return visible_gpus() if torch.cuda.is_available() else []


def _serials(gpus: Sequence[Gpu]) -> list[str]:
    return [gpu.serial for gpu in gpus]


def _fits(gpus: Sequence[Gpu], needed: int, index: int, place: int) -> bool:
    """Whether a GPU holds `place` + 1 jobs; the first may always try.

    Where nobody tells what is free, the jobs that share it are all that counts.
    """
    if not place:
        return True
    if (place + 1) * needed > gpus[index].total_memory:
        return False
    free = free_memory(gpus[index])
    return free is None or free >= needed


def _current(index: int) -> contextlib.AbstractContextManager[None]:
    import torch

    return torch.cuda.device(index)


def _shared_locks() -> Path:
    return Path(tempfile.gettempdir()) / "gc25d-gpus"
