"""Which GPU of its node a job may use: one lock file a GPU, held while the job works.

A scheduler hands out numbers of GPUs, not GPUs: without a claim, all jobs of a node would take the
first. Locks are named after the GPUs' own serial numbers, so jobs agree however
CUDA_VISIBLE_DEVICES or a container renumbers the devices, also on a file system that several nodes
share. The kernel drops a lock with the process that held it.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import locked

_POLL_S = 0.5
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
    import torch

    if not torch.cuda.is_available():
        yield "cpu"
        return
    serials = [
        str(torch.cuda.get_device_properties(index).uuid)
        for index in range(torch.cuda.device_count())
    ]
    locks = locks or Path(tempfile.gettempdir()) / "gc25d-gpus"
    with claimed(serials, locks, wait_s) as index, torch.cuda.device(index):
        yield f"cuda:{index}"


@contextlib.contextmanager
def claimed(serials: Sequence[str], locks: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of the first free GPU of `serials`; yields its place among them.

    Raises:
        UserError: all stayed claimed for `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as held:
        while (index := _first_free(serials, locks, held)) is None:
            if time.monotonic() >= deadline:
                raise UserError(
                    f"all {len(serials)} visible GPUs are claimed by other jobs (locks in {locks}):"
                    " wait for one to end, or allow fewer at once with --resources gpu=<count>"
                )
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
        yield index


def _first_free(serials: Sequence[str], locks: Path, held: contextlib.ExitStack) -> int | None:
    """Take the first lock that can be had; None when there is none."""
    for index, serial in enumerate(serials):
        with contextlib.suppress(UserError):
            held.enter_context(locked(locks / f"{serial}.lock", wait_s=0, held="claimed"))
            return index
    return None
