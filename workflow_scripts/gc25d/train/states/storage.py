"""Room for states: free disk space and free memory, and what is said when there is too little."""

import ctypes
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from gc25d.errors import UserError
from gc25d.full_disk import FULL, free_bytes

logger = logging.getLogger(__name__)

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def reserve(descriptor: int, size: int) -> None:
    """Take the blocks of a file at once: writing is faster, and a full disk is known beforehand.

    The C library's `fallocate` is called, not `posix_fallocate`: on file systems that cannot
    reserve, the latter writes every block, the former says so and nothing is reserved.

    Raises:
        OSError: the disk or a quota is full.
    """
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size))
    code = ctypes.get_errno()
    if failed and code in FULL:
        raise OSError(code, os.strerror(code))


def remove_state(folder: Path) -> None:
    """Remove a state's folder; of one that is a link, the link alone.

    Whoever moved a state to another place and linked it back may want it there: it is named.
    """
    if not folder.is_symlink():
        shutil.rmtree(folder)
        return
    target = folder.resolve()
    folder.unlink()
    logger.warning(
        "a link to %s went; what lies there stays: delete it if it is not needed", target
    )


def folder_bytes(folders: Iterable[Path]) -> int:
    """The bytes of all files in these folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*"))


def make_room(root: Path, needed: int, removable: Sequence[Path]) -> None:
    """Free `needed` bytes below `root` by removing older states, the oldest first, if it must be.

    Raises:
        UserError: it is too little even so.
    """
    for folder in removable:
        if free_bytes(root) >= needed:
            return
        logger.warning("%s goes early: %s is almost full", folder, root)
        remove_state(folder)
    if free_bytes(root) < needed:
        raise disk_full(root, needed)


def check_two_states_fit(root: Path, one: int, present: Sequence[Path]) -> None:
    """At the start: a state must never go before the one after it is whole.

    Args:
        root: the folder of the states.
        one: bytes of a state.
        present: the run's states that lie there already; they rotate.

    Raises:
        UserError: two do not fit.
    """
    held = folder_bytes(present)
    if free_bytes(root) + held < 2 * one:
        raise disk_full(root, 2 * one - held, "two states of this run must fit")


def disk_full(root: Path, needed: int, why: str = "the next state does not fit") -> UserError:
    """The message of a full disk."""
    return UserError(
        f"{root}: {why}: needs {in_gb(needed)}, free are {in_gb(free_bytes(root))}. Free "
        "space there, or move the run's folder to a larger disk, then give the same command again: "
        "the state before this one is kept"
    )


def in_gb(size: int) -> str:
    """Bytes for a message."""
    return f"{size / 1e9:.3g} GB"


def available_memory() -> int | None:
    """Bytes of host memory that this process may still take; None where the system does not say.

    The smallest of the machine's `MemAvailable` and what the limits of the control groups leave
    (version 2; a scheduler's job is a group in a group).
    """
    own = _OWN_GROUP.read_text() if _OWN_GROUP.exists() else ""
    groups = [_group_memory(folder) for folder in _groups(own)]
    return min((limit for limit in (_machine_memory(), *groups) if limit is not None), default=None)


def _groups(own: str, root: Path = _CGROUP) -> list[Path]:
    """Folders of the control groups that a process is in, by its /proc/<pid>/cgroup."""
    named = next((line[3:] for line in own.splitlines() if line.startswith("0::")), "/")
    # What lies outside a container's own view starts with "..": only the root is seen then.
    path = PurePosixPath(named.lstrip("/"))
    inside = () if ".." in path.parts else path.parts
    return [root.joinpath(*inside[:depth]) for depth in range(len(inside) + 1)]


def _machine_memory() -> int | None:
    if not _MEMINFO.exists():
        return None
    lines = _MEMINFO.read_text().splitlines()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def _group_memory(root: Path) -> int | None:
    """A control group's limit less what it holds; pages that only cache files do not count."""
    limit, current, stat = (root / f"memory.{name}" for name in ("max", "current", "stat"))
    try:
        if limit.read_text().strip() == "max":
            return None
        pages = dict(line.split() for line in stat.read_text().splitlines())
        used = int(current.read_text()) - int(pages.get("inactive_file", 0))
        return max(0, int(limit.read_text()) - used)
    except (OSError, ValueError):
        return None
