"""SHA-256 of large files, remembered for as long as they stay as they are: 10 GB are read once.

A file counts as the same while its path, size, inode and times (ns) are: of its last write and of
its last change of any kind, so that a copy which sets back the former is noticed. Links are
followed. Looking writes nothing. Imports no torch.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import read_json, write_json

Entries: TypeAlias = dict[str, list[Any]]
"""Absolute path → size, inode, two times, SHA-256."""
_READERS = 8  # threads that digest files side by side
_LARGE = 10**9  # bytes whose reading is told


def file_digests(
    paths: Iterable[Path], cache: Path, tell: Callable[[str], None]
) -> tuple[dict[Path, str], Entries]:
    """SHA-256 (hex) of each file, and what `remember` may add to the cache.

    Args:
        paths: files that exist.
        cache: file of earlier digests; one that is missing or damaged is as good as empty.
        tell: called with a line when much has to be read.
    """
    wanted = {path: _state(path) for path in dict.fromkeys(paths)}
    known = _read(cache) if wanted else {}
    changed = [path for path, state in wanted.items() if known.get(_key(path), [])[:-1] != state]
    size = sum(wanted[path][0] for path in changed)
    if size > _LARGE:
        tell(f"reading {size / 1e9:.0f} GB of weights for their SHA-256, kept in {cache} by a run")
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
        fresh = dict(zip(changed, readers.map(digest_file, changed), strict=True))
    digests = {path: fresh[path] if path in fresh else known[_key(path)][-1] for path in wanted}
    # A file that was written to meanwhile is read again the next time.
    whole = {_key(p): [*wanted[p], fresh[p]] for p in changed if _state(p) == wanted[p]}
    return digests, whole


def remember(cache: Path, entries: Mapping[str, list[Any]]) -> None:
    """Add digests to the cache; a folder that may not be written to is left alone."""
    if entries:
        with contextlib.suppress(OSError):
            write_json(cache, dict(sorted({**_read(cache), **entries}.items())))


def _key(path: Path) -> str:
    return str(path.absolute())


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _read(cache: Path) -> Entries:
    """The entries of the cache that are whole."""
    try:
        content = read_json(cache)
    except UserError:
        return {}
    entries = content.items() if isinstance(content, dict) else ()
    return {path: entry for path, entry in entries if _is_whole(entry)}


def _is_whole(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 5
        and all(type(number) is int for number in entry[:-1])
        and isinstance(entry[-1], str)
        and len(entry[-1]) == 64
    )
