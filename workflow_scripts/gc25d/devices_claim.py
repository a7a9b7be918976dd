"""Which GPU of its node a job may use: one lock file a GPU, held while the job works.

A scheduler hands out numbers of GPUs, not GPUs: without a claim, all jobs of a node would take the
first. Locks are named after the GPUs' own serial numbers, so jobs agree however
CUDA_VISIBLE_DEVICES or a container renumbers the devices, also on a file system that several nodes
share. The kernel drops a lock with the process that held it.

Jobs that take longer to start than to work may make themselves ready on a GPU while another such
job works there, one a GPU: whoever works holds `<serial>.brief` too, whoever waits `<serial>.next`.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import locked

_POLL_S = 0.1
_WAIT_S = 3600.0


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
    serials = _visible_serials()
    if not serials:
        yield "cpu"
        return
    with claimed(serials, locks or _shared_locks(), wait_s) as index, _current(index):
        yield f"cuda:{index}"


@dataclass(frozen=True)
class Reservation:
    """A device on which a job makes itself ready."""

    device: str
    claim: Callable[[], None]
    """Wait until no other job works there; the device is this job's until the reservation ends."""


@contextlib.contextmanager
def reserved_device(
    needed: int, locks: Path | None = None, wait_s: float = _WAIT_S
) -> Iterator[Reservation]:
    """As `claimed_device`, but free to load and compile there before its turn has come.

    A GPU that nobody works on is claimed at once. Behind a job that works the GPU must have room.

    Args:
        needed: bytes of the GPU's memory that this job takes.
        locks: as for `claimed_device`.
        wait_s: seconds to wait for a place, and then for the GPU.

    Raises:
        UserError: there was no place for `wait_s` seconds.
    """
    serials = _visible_serials()
    if not serials:
        yield Reservation("cpu", lambda: None)
        return
    locks = locks or _shared_locks()
    with (
        reserved(serials, locks, wait_s, lambda i: _free(i) >= needed) as place,
        _current(place[0]),
    ):
        index, claim = place
        yield Reservation(f"cuda:{index}", claim)


@contextlib.contextmanager
def claimed(serials: Sequence[str], locks: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of the first free GPU of `serials`; yields its place among them.

    Raises:
        UserError: all stayed claimed for `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        while (index := _first_free(serials, locks, held)) is None:
            _wait_until(deadline, serials, locks)
        yield index


@contextlib.contextmanager
def reserved(
    serials: Sequence[str], locks: Path, wait_s: float, has_room: Callable[[int], bool]
) -> Iterator[tuple[int, Callable[[], None]]]:
    """Hold a free GPU's lock, or a place behind a job of this kind; yields its index and the claim.

    Raises:
        UserError: there was neither for `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held, contextlib.ExitStack() as turn:
        while (found := _place(serials, locks, held, turn, has_room)) is None:
            _wait_until(deadline, serials, locks)
        index, working = found

        def claim() -> None:
            nonlocal working
            if not working:
                held.enter_context(claimed(serials[index : index + 1], locks, wait_s))
                held.enter_context(_taken(serials[index], "brief", locks))
                turn.close()
                working = True

        yield index, claim


def _place(
    serials: Sequence[str],
    locks: Path,
    held: contextlib.ExitStack,
    turn: contextlib.ExitStack,
    has_room: Callable[[int], bool],
) -> tuple[int, bool] | None:
    """A GPU that nobody works on or waits for, and True; or one to wait for, and False.

    The locks of the first go to `held`, the place behind the other's job to `turn`.
    """
    waiting = [f"{serial}.next" for serial in serials]
    for index, serial in enumerate(serials):
        with contextlib.ExitStack() as tried:
            if (
                _first_free(waiting[index : index + 1], locks, tried) is not None
                and _first_free([serial], locks, held) is not None
            ):
                held.enter_context(_taken(serial, "brief", locks))
                return index, True
    for index, serial in enumerate(serials):
        with contextlib.ExitStack() as tried:
            brief = _first_free([f"{serial}.brief"], locks, tried) is None
        if brief and has_room(index) and _first_free([waiting[index]], locks, turn) is not None:
            return index, False
    return None


def _taken(serial: str, mark: str, locks: Path) -> contextlib.AbstractContextManager[None]:
    """A lock beside a GPU's own; who only looks whether it is held lets it go at once."""
    return locked(locks / f"{serial}.{mark}.lock", wait_s=_WAIT_S, held="claimed")


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
    """Take the first lock that can be had; None when there is none."""
    for index, serial in enumerate(serials):
        with contextlib.suppress(UserError):
            held.enter_context(locked(locks / f"{serial}.lock", wait_s=0, held="claimed"))
            return index
    return None


def _visible_serials() -> list[str]:
    """The GPUs' serial numbers by index; none without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    indices = range(torch.cuda.device_count())
    return [str(torch.cuda.get_device_properties(index).uuid) for index in indices]


def _free(index: int) -> int:
    """Bytes of a GPU's memory that nobody has taken."""
    import torch

    return int(torch.cuda.mem_get_info(index)[0])


def _current(index: int) -> contextlib.AbstractContextManager[None]:
    import torch

    return torch.cuda.device(index)


def _shared_locks() -> Path:
    return Path(tempfile.gettempdir()) / "gc25d-gpus"
