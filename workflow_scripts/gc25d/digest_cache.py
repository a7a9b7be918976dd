"""SHA-256 of large files, remembered for as long as they stay as they are: 10 GB are read once.

A file counts as the same while its path, size, inode and times (ns) are: of its last write and of
its last change of any kind, so that a copy which sets back the former is noticed. Imports no torch.
"""

import contextlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.records import digest_file, read_json, write_json

FILE = "digests.json"
"""Of the cache, below `cache_root`: absolute path → state of the file, then its SHA-256."""
_READERS = 8  # threads that digest files side by side


def file_digests(paths: Iterable[Path], cache: Path, *, remember: bool) -> dict[Path, str]:
    """SHA-256 (hex) of each file.

    Args:
        paths: files that exist.
        cache: of earlier digests; one that is missing or damaged is as good as empty.
        remember: whether to write the new ones into `cache`; a dry run writes nothing.
    """
    wanted = {path: _state(path) for path in dict.fromkeys(paths)}
    if not wanted:
        return {}
    known = _read(cache)
    changed = [path for path, state in wanted.items() if known.get(_key(path), [])[:-1] != state]
    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
        fresh = dict(zip(changed, readers.map(digest_file, changed), strict=True))
    # A file that was written to meanwhile is read again the next time.
    kept = {_key(p): [*wanted[p], fresh[p]] for p in changed if _state(p) == wanted[p]}
    if kept and remember:
        with contextlib.suppress(OSError):  # of a folder that may not be written to
            write_json(cache, dict(sorted({**known, **kept}.items())))
    return {path: fresh[path] if path in fresh else known[_key(path)][-1] for path in wanted}


def _key(path: Path) -> str:
    return str(path.absolute())


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns]


def _read(cache: Path) -> dict[str, list[Any]]:
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
