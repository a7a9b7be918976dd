"""Files and folders that are written whole or not at all, and digests of files.

Imports no torch: rules use it at parse time.
"""

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gc25d.errors import UserError
from gc25d.full_disk import naming_full_disk

_ABANDONED_S = 24 * 3600.0
"""Age at which another host's temporary file counts as left behind."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; fsync and rename it into place on success.

    A link stays and the file that it points to is written. The new file has the mode that any
    program's would have (0666 less the umask). On an exception the temporary file is removed and
    `path` stays as it was. What a killed writer of `path` left is removed by the next.

    Raises:
        UserError: see `real_path`; or the disk or a quota is full.
    """
    target = real_path(path)
    with naming_full_disk(target), _replacement(target) as temporary:
        yield temporary


@contextlib.contextmanager
def _replacement(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    for leftover in _leftovers(target):
        leftover.unlink(missing_ok=True)
    name = f".{target.name}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    temporary = target.with_name(name)
    mode = _create(temporary)
    try:
        yield temporary
        temporary.chmod(mode)  # some libraries write a file of their own in its place
        fsync(temporary)
        _rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _rename(temporary: Path, target: Path) -> None:
    """Rename, and bring the folder's entries to disk.

    The folder is opened before: whoever waits for the file may move the folder at once.
    """
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        temporary.replace(target)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; rename it into place on success, in place of an older one.

    Whoever fills it brings the files to disk. On an exception the new folder is removed and `path`
    stays as it was. What a killed writer of `path` left is removed by the next.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in _leftovers(path):
        shutil.rmtree(leftover, ignore_errors=True)
    stem = f".{path.name}.{_host()}-{os.getpid()}-"
    building, replaced = (path.with_name(f"{stem}{part}.tmp") for part in ("new", "old"))
    building.mkdir()
    try:
        yield building
        fsync(building)
        if path.exists():
            path.rename(replaced)
        building.rename(path)
        fsync(path.parent)
    finally:
        for temporary in (building, replaced):
            shutil.rmtree(temporary, ignore_errors=True)


def real_path(path: Path) -> Path:
    """Where a file is written that is called `path`: behind the link, if it is one.

    A link to a file that is not there yet is fine as long as its folder is.

    Raises:
        UserError: the link goes round in a circle, or into a folder that is not there (a disk that
            is not mounted).
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink() or not target.parent.is_dir():
        raise UserError(
            f"{path}: a link to {target}, which leads nowhere: mount its disk or make its folder, "
            "or remove the link"
        )
    return target


def _create(path: Path) -> int:
    """Make an empty file and return its mode, which the system took from the umask."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _leftovers(path: Path) -> list[Path]:
    """Temporaries of `path` whose process on this host has ended, or a day without a write."""
    named = re.compile(rf"\.{re.escape(path.name)}\.([0-9a-f]{{8}})-(\d+)-\w+\.tmp")
    with os.scandir(path.parent) as entries:
        found = [(entry, match) for entry in entries if (match := named.fullmatch(entry.name))]
    return [
        Path(entry.path)
        for entry, match in found
        if (match[1] == _host() and not _runs(int(match[2]))) or _unwritten_s(entry) > _ABANDONED_S
    ]


def _host() -> str:
    """Eight hex digits that stand for this host."""
    return digest_bytes(platform.node().encode())[:8]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _unwritten_s(entry: os.DirEntry[str]) -> float:
    """Seconds since the last write; 0 for a file that has just gone."""
    try:
        return time.time() - entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def fsync(path: Path) -> None:
    """Bring a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically (UTF-8)."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest_bytes(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
