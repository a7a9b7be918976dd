"""One state on disk, read with suspicion: what it says it is, and whether that is all there.

What was read and found wanting is a `BrokenState`. What could not be read just now, or is of
another format, is an `UnknownState`: that says nothing about the state. Names in its records are
joined to paths only if they are those that a state's files have.
"""

import math
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gc25d.errors import UserError
from gc25d.files import digest_bytes, digest_file
from gc25d.records import digest_json
from gc25d.strict_json import parse_json

FORMAT = 2
MANIFEST = "manifest.json"
DIGEST_THREADS = 8
PREFIX = "step-"
_WAYS_OUT = "restore it, or move it away to go on from an older state"

Checked = TypeVar("Checked", bound=BaseModel)
Count = Annotated[int, Field(ge=0)]


class BrokenState(UserError):
    """It was read and is not whole."""


class UnknownState(UserError):
    """It could not be read, or is of another format: nobody knows whether it is whole."""


class Strict(BaseModel):
    """No value is taken for another type's, no key is passed over."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Listed(Strict):
    """A file as a manifest or a record lists it."""

    size: Count
    sha256: str


class Manifest(Strict):
    """What `manifest.json` says."""

    format: int
    step: Count
    checkpoint: bool
    segment_start: Count | None = None
    binding: str
    world_size: Count
    records: dict[str, Listed]
    sha256: str


class Place(Strict):
    """Where a fragment lies."""

    name: str
    shape: list[Count]
    start: Count
    stop: Count
    file: str

    @property
    def size(self) -> int:
        """The number of the whole tensor's values."""
        return math.prod(self.shape)


class Record(Strict):
    """What a process wrote: its parts, and which values they hold."""

    files: dict[str, Listed]
    fragments: list[Place]


@dataclass(frozen=True)
class StoredState:
    """A state on disk whose manifest is whole."""

    folder: Path
    step: int
    """Optimizer steps behind it."""
    checkpoint: bool
    """Whether it is a segment's end."""
    binding: str
    """Digest of the settings and data that it belongs to."""
    records: Mapping[str, Listed]
    """Each process's record by its file name."""
    segment_start: int | None = None
    """Step at which the segment began that saved it; None where an earlier version did."""


def step_of(folder: Path) -> int:
    """The step in the name of a state's folder."""
    return int(folder.name.removeprefix(PREFIX))


def record_name(rank: int, world_size: int) -> str:
    """The file name of a process's record."""
    return f"shard-{rank:05d}-of-{world_size:05d}.json"


def part_name(record: str, number: int) -> str:
    """The file name of a part that a record lists."""
    return f"{record.removesuffix('.json')}-part-{number:03d}.safetensors"


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest's content with its digest."""
    return {**content, "sha256": digest_json(content)}


def open_state(folder: Path) -> StoredState:
    """Read a state's manifest.

    Raises:
        BrokenState: it is missing, cut, changed, or of another step than its folder.
        UnknownState: it could not be read, or is of a format that this version does not know.
    """
    path = folder / MANIFEST
    sealed = _parsed(path, _content(path))
    found = sealed.get("format") if isinstance(sealed, dict) else None
    if type(found) is int and found != FORMAT:
        raise UnknownState(
            f"{path}: is of format {found}, this version reads format {FORMAT}: go on with the "
            "version that wrote it, or move it away to go on from an older state"
        )
    manifest = _checked(Manifest, path, sealed)
    content = {key: value for key, value in sealed.items() if key != "sha256"}
    if sealed != seal(content):
        raise BrokenState(f"{path}: does not match its own digest: restore or delete {folder}")
    if manifest.step != step_of(folder):
        raise BrokenState(f"{path}: is of step {manifest.step}: give {folder} its own name back")
    _check_record_names(path, manifest)
    known = manifest.model_dump(include={"step", "checkpoint", "binding", "segment_start"})
    return StoredState(folder, records=manifest.records, **known)


def _check_record_names(path: Path, manifest: Manifest) -> None:
    """A name that is no record's would be a path to anywhere."""
    number, listed = manifest.world_size, manifest.records
    if number != len(listed) or set(listed) != {
        record_name(rank, number) for rank in range(number)
    }:
        raise BrokenState(
            f"{path}: lists {sorted(listed)[:3]}, expected the records of {number} process(es), "
            f"{record_name(0, number)} first: restore or delete {path.parent}"
        )


def read_record(state: StoredState, name: str) -> Record:
    """Read one process's record.

    Raises:
        BrokenState: it does not match the manifest, or names a file that is not its own.
        UnknownState: it could not be read.
    """
    path = state.folder / name
    data = _content(path)
    if digest_bytes(data) != state.records[name].sha256:
        raise BrokenState(f"{path}: does not match its digest: restore or delete {state.folder}")
    record = _checked(Record, path, _parsed(path, data))
    stem = re.escape(name.removesuffix(".json"))
    own = re.compile(rf"{stem}-part-[0-9]{{3,}}\.safetensors")
    for file in record.files:
        if not own.fullmatch(file):
            raise BrokenState(
                f"{path}: names {file!r}, expected a file like {part_name(name, 0)}: restore or "
                f"delete {state.folder}"
            )
    for place in record.fragments:
        if place.file not in record.files or not place.start <= place.stop <= place.size:
            raise BrokenState(
                f"{path}: {place.name}: values {place.start} to {place.stop} of {place.size} in "
                f"{place.file!r}: restore or delete {state.folder}"
            )
    return record


def check_sizes(state: StoredState) -> None:
    """Every file is there, in its size; the content of the parts is not read.

    Raises:
        BrokenState: names the first that is not.
        UnknownState: one could not be looked at.
    """
    _check_sizes(state.folder, state.records)
    for name in state.records:
        _check_sizes(state.folder, read_record(state, name).files)


def check_digests(state: StoredState) -> None:
    """Every file is there, in its size, with its content.

    Raises:
        BrokenState: names the first that is not.
        UnknownState: one could not be read.
    """
    for name in state.records:
        _check_files(state.folder, read_record(state, name).files)


def _check_files(folder: Path, files: Mapping[str, Listed]) -> None:
    _check_sizes(folder, files)
    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        digests = pool.map(_digest, (folder / name for name in files))
        for name, digest in zip(files, digests, strict=True):
            if digest != files[name].sha256:
                raise BrokenState(f"{name} does not match its digest")


def _check_sizes(folder: Path, files: Mapping[str, Listed]) -> None:
    for name, expected in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise _fault(path, error) from error
        if size != expected.size:
            raise BrokenState(f"{name} has {size} bytes, expected {expected.size}")


def _digest(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise _fault(path, error) from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _fault(path, error) from error


def _fault(path: Path, error: OSError) -> UserError:
    """A file that is not there is a fault of the state; any other error may pass."""
    if isinstance(error, NotADirectoryError):
        return BrokenState(f"{path.parent} is no folder")
    if not isinstance(error, FileNotFoundError):
        return UnknownState(
            f"{path}: cannot be read ({error.strerror}), which may pass: give the same command "
            f"again. If it stays, {_WAYS_OUT}"
        )
    for link in (path, path.parent):
        if link.is_symlink() and not os.path.exists(link):  # noqa: PTH110 - any error is "not"
            return UnknownState(
                f"{link}: is a link to {link.readlink()}, which is not there: mount that disk, "
                f"{_WAYS_OUT}"
            )
    return BrokenState(f"{path.name} is missing")


def _parsed(path: Path, data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise BrokenState(f"{path}: not readable as JSON ({error})") from None


def _checked(kind: type[Checked], path: Path, content: Any) -> Checked:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its content"
        raise BrokenState(f"{path}: {where}: {first['msg'].lower()}") from None
