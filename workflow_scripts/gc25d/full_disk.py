"""A disk that is full, or a quota on it: known whoever says so, and named by its folder.

Imports no torch: `records` uses it.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from gc25d.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says when a disk, or a quota on it, is full."""
_SPENT = 16 << 20
"""Free bytes below which a disk counts as full."""


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error is a full disk or quota, or was raised while handling one.

    Libraries in Rust and C++ raise errors of their own that carry the system's words.
    """
    while error is not None:
        said = str(error)
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(os.strerror(code) in said for code in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk(error: BaseException, folders: Sequence[Path], lost: str) -> UserError:
    """The message of a full disk.

    Args:
        error: what was raised.
        folders: where something may have been written, the likeliest first.
        lost: what became of that.
    """
    name = getattr(error, "filename", None)
    named = [Path(os.fsdecode(name)).parent] if isinstance(name, str | bytes) else []
    tried = [*named, *folders, Path(tempfile.gettempdir())]
    folder = next((place for place in tried if free_bytes(place) < _SPENT), tried[0])
    return UserError(
        f"{folder}: the disk, or a quota on it, is full ({free_bytes(folder) / 1e9:.3g} GB free). "
        f"{lost} Free space there, or move the folder to a larger disk, then give the same command "
        "again"
    )


def free_bytes(folder: Path) -> int:
    """What this user may still write below a folder, or where it would be made."""
    path = folder.absolute()
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a disk that fills while `path` is written into one that names the folder.

    Raises:
        UserError: the disk or a quota is full.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            raise
        lost = f"Nothing is lost: {path.name} is as it was before."
        raise full_disk(error, [path.parent, path.resolve().parent], lost) from error
