"""Small files written whole or not at all: atomic JSON, JSONL and CSV, digests, locks.

Imports no torch: rules use it at parse time.
"""

import contextlib
import csv
import hashlib
import io
import json
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gc25d.errors import UserError
from gc25d.full_disk import naming_full_disk

_ABANDONED_S = 24 * 3600.0
"""Age at which another host's temporary file counts as left behind."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; fsync and rename it into place on success.

    On an exception the temporary file is removed and `path` stays as it was. What a killed writer
    of `path` left is removed by the next.

    Raises:
        UserError: the disk or a quota is full.
    """
    with naming_full_disk(path), _replacement(path) as temporary:
        yield temporary


@contextlib.contextmanager
def _replacement(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in _leftovers(path):
        leftover.unlink(missing_ok=True)
    prefix = f".{path.name}.{_host()}-{os.getpid()}-"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


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


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON (NaN and infinities are errors), keys in the order given."""
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically."""
    write_text(path, to_json(value) + "\n")


def holds_json(path: Path, value: Any) -> bool:
    """Whether the file's content is exactly what `write_json` would write."""
    return path.exists() and path.read_text(encoding="utf-8") == to_json(value) + "\n"


def parse_json(data: bytes) -> Any:
    """Parse strict JSON.

    Raises:
        ValueError: it is not JSON, or holds NaN or an infinity.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    return json.loads(data, parse_constant=refuse)


def read_json(path: Path) -> Any:
    """Read strict JSON.

    Raises:
        UserError: the file is missing, cut, not JSON, or holds NaN or an infinity.
    """
    try:
        return parse_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not readable as JSON ({error}): restore or rebuild it") from None


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one strict JSON object a line, atomically, holding one line at a time."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(to_json(row, indent=None) + "\n")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file.

    Raises:
        UserError: a line is not JSON; names the line.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number}: not JSON ({error})") from None


def append_jsonl(path: Path, row: Mapping[str, Any]) -> None:
    """Append one object in a single write. A last line that a kill cut goes first.

    Raises:
        UserError: the disk or a quota is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    whole = _without_cut_line(content)
    after_a_line = bool(whole) and not whole.endswith(b"\n")
    with naming_full_disk(path), path.open("ab") as file:
        if whole != content:
            file.truncate(len(whole))
        file.write(b"\n" * after_a_line + to_json(row, indent=None).encode() + b"\n")


def _without_cut_line(content: bytes) -> bytes:
    """JSONL without its last line, unless that is JSON."""
    ended = content.removesuffix(b"\n")
    start = ended.rfind(b"\n") + 1
    try:
        parse_json(content[start:] or b"{}")
    except ValueError:
        return content[:start]
    return content


def csv_text(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A CSV with `header` and the rows' values in its order."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none when the file is missing."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def digest_bytes(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> bytes:
    """Strict JSON without spaces, keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))


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
