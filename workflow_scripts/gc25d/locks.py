"""Locks that are files.

Imports no torch.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from gc25d.errors import UserError


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float, held: str) -> Iterator[None]:
    """Hold the lock file `path`; the kernel drops the lock with the process that held it.

    Raises:
        UserError: another process kept it for `wait_s` seconds; the message starts with `held`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=wait_s)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{held} (lock {path}): wait for it to end, or stop it") from None
    try:
        yield
    finally:
        lock.release()
