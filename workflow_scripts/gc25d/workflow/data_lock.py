"""One data set, several working folders: nobody rebuilds what a training or evaluation reads.

Two lock files lie beside the data. Readers share `readers.lock`; the snakemake that builds holds
`builder.lock` alone. Each looks for the other once it holds its own, so that of two who start at
once at least one sees the other. The kernel drops a lock with the process that held it.
"""

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from gc25d.errors import UserError

_READERS = "readers.lock"
_BUILDER = "builder.lock"
_LOOK_S = 2.0
"""For so long at most somebody who only looks keeps a lock."""


@contextlib.contextmanager
def reading(folders: Iterable[Path]) -> Iterator[None]:
    """Hold data sets as they are; a snakemake of this working folder may hold them for building.

    A data set that may not be written to, so that no lock can lie there, is read without one.

    Raises:
        UserError: a snakemake of another folder builds one of them.
    """
    with contextlib.ExitStack() as held:
        for data in folders:
            with contextlib.suppress(PermissionError):
                readers = held.enter_context(_opened(data / _READERS))
                fcntl.flock(readers, fcntl.LOCK_SH)
                _note(readers)
            folder, where = _holder(data / _BUILDER)
            if folder not in ("", _folder()):
                raise UserError(
                    f"{data}: a snakemake builds it from {where}: wait until that has ended, then "
                    "give the same command again"
                )
        yield


def hold_for_building(data: Path) -> TextIO:
    """Keep a data set to this snakemake until the returned file is closed.

    Raises:
        UserError: another snakemake builds it, or a training or evaluation reads it.
    """
    builder = _opened(data / _BUILDER)
    if not _taken(builder, _LOOK_S):
        _, where = _noted(builder)
        builder.close()
        raise UserError(f"{data}: another snakemake builds it, from {where}: wait for it to end")
    _note(builder)
    folder, where = _holder(data / _READERS)
    if folder:
        builder.close()
        raise UserError(
            f"{data} would be built anew under a training or evaluation that reads it from {where}"
            ". Nothing was started: wait until that has ended, or build with another `dataset` name"
        )
    return builder


def _opened(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")


def _taken(file: TextIO, wait_s: float) -> bool:
    """Take the lock alone; False when it is held for `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _holder(path: Path) -> tuple[str, str]:
    """Working folder of who holds a lock, and where that is; nothing when nobody does."""
    if not path.exists():
        return "", ""
    try:
        with path.open(encoding="utf-8") as file:
            return ("", "") if _taken(file, 0.0) else _noted(file)
    except PermissionError:
        return "", ""


def _noted(file: TextIO) -> tuple[str, str]:
    file.seek(0)
    folder, _, host = file.read().partition("\n")
    return folder or "?", f"{folder} on {host}" if host else "another folder"


def _note(file: TextIO) -> None:
    """Write who holds the lock; of several readers the last stays."""
    file.seek(0)
    file.truncate()
    file.write(f"{_folder()}\n{platform.node()}")
    file.flush()


def _folder() -> str:
    return str(Path.cwd().resolve())
