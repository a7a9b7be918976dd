"""Small files written whole or not at all: atomic JSON, JSONL and CSV, digests.

Imports no torch: rules use it at parse time.
"""

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.files import atomic_path, digest_bytes, real_path, write_text
from gc25d.full_disk import naming_full_disk
from gc25d.strict_json import parse_json


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON (NaN and infinities are errors), keys in the order given."""
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically."""
    write_text(path, to_json(value) + "\n")


def write_jsons(contents: Mapping[Path, Any]) -> None:
    """Write several files of strict JSON, all or none.

    All are written beside their places first. When one cannot take its place, those that have
    already done so get back what they held.

    Raises:
        UserError, OSError: see `atomic_path`; every file is as it was.
    """
    targets = {real_path(path): value for path, value in contents.items()}
    before = {path: path.read_bytes() if path.exists() else None for path in targets}
    try:
        with contextlib.ExitStack() as writing:
            for path, value in targets.items():
                temporary = writing.enter_context(atomic_path(path))
                temporary.write_text(to_json(value) + "\n", encoding="utf-8")
    except BaseException:
        for path, held in before.items():
            _put_back(path, held)
        raise


def _put_back(path: Path, held: bytes | None) -> None:
    """Give a file the content that it had, none for one that was not there."""
    if held is None:
        path.unlink(missing_ok=True)
    elif path.read_bytes() != held:
        with atomic_path(path) as temporary:
            temporary.write_bytes(held)


def holds_json(path: Path, value: Any) -> bool:
    """Whether the file's content is exactly what `write_json` would write."""
    return path.exists() and path.read_bytes() == (to_json(value) + "\n").encode()


def read_json(path: Path, *, finite: bool = True) -> Any:
    """Read strict JSON, with or without a byte-order mark.

    Args:
        path: of the file.
        finite: whether NaN and infinities are refused.

    Raises:
        UserError: the file is missing, cut, not JSON, holds a key twice in one object, or a number
            that is not finite.
    """
    try:
        return parse_json(path.read_bytes(), finite=finite)
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path}: not readable as JSON ({error}): correct, restore or rebuild it"
        ) from None


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one strict JSON object a line, atomically, holding one line at a time."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(to_json(row, indent=None) + "\n")


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file.

    Raises:
        UserError: the file is missing, or a line is no strict JSON object; names the line.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield _row(path, number, line)
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {number}: {line[:40]!r}, expected a JSON object")
    return row


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
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def canonical_json(value: Any) -> bytes:
    """Strict JSON without spaces, keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))
