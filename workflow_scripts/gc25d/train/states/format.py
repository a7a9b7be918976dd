"""The files of a training state: fragments → parts of `.safetensors`, their record, the manifest.

A process writes its fragments to `shard-<rank>-of-<processes>-part-<i>.safetensors`, whole tensors
under their name and pieces under `<name>[<start>:<stop>]`, always as flat float32 values. Its
record `shard-<rank>-of-<processes>.json` has each part's size and SHA-256 and each fragment's
place.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.files import digest_file, fsync
from gc25d.records import to_json
from gc25d.train.states.files import FORMAT, part_name, record_name, seal
from gc25d.train.states.fragments import VALUE_BYTES, Fragment, total_bytes
from gc25d.train.states.storage import remove_state, reserve

PART_BYTES = 1 << 30
"""Largest part, one tensor larger than that aside: a GiB is the size in which PyTorch pins host
memory without waste, and small enough for several threads to digest a process's share."""
CHUNK_BYTES = 8 << 20
_ALIGNMENT = 8


@dataclass(frozen=True)
class Part:
    """Fragments that share a file, in its order."""

    file: str
    fragments: tuple[Fragment, ...]

    @property
    def values(self) -> int:
        """The number of its values."""
        return total_bytes(self.fragments) // VALUE_BYTES


@dataclass(frozen=True)
class Written:
    """A file that was written and brought to disk."""

    size: int
    sha256: str

    def as_json(self) -> dict[str, Any]:
        """As records and manifests list it."""
        return {"size": self.size, "sha256": self.sha256}


def fragment_key(name: str, start: int, stop: int, *, whole: bool) -> str:
    """The name of a fragment inside its file."""
    return name if whole else f"{name}[{start}:{stop}]"


def parts_of(
    fragments: Sequence[Fragment], rank: int, world_size: int, part_bytes: int = PART_BYTES
) -> list[Part]:
    """Fill parts with the fragments in their order; each holds at most `part_bytes`."""
    filled: list[list[Fragment]] = []
    used = part_bytes
    for fragment in fragments:
        size = total_bytes([fragment])
        if used + size > part_bytes:
            filled.append([])
            used = 0
        filled[-1].append(fragment)
        used += size
    record = record_name(rank, world_size)
    return [Part(part_name(record, number), tuple(held)) for number, held in enumerate(filled)]


def part_header(part: Part) -> bytes:
    """The `.safetensors` header of a part: length (8 bytes, little-endian), then JSON."""
    entries, offset = {}, 0
    for fragment in part.fragments:
        end = offset + total_bytes([fragment])
        key = fragment_key(fragment.name, fragment.start, fragment.stop, whole=fragment.whole)
        shape = [fragment.values.numel()]
        entries[key] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = to_json(entries, indent=None).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_part(path: Path, header: bytes, values: Tensor) -> Written:
    """Write a part to disk, digesting it on the way; both release the interpreter's lock.

    Args:
        path: a new file.
        header: see `part_header`.
        values: float32 [n] in host memory, the fragments' values one after another.
    """
    digest, size = hashlib.sha256(), 0
    data = values.view(torch.uint8).numpy().data
    with path.open("xb") as file:
        reserve(file.fileno(), len(header) + len(data))
        for chunk in itertools.chain([memoryview(header)], _chunks(data)):
            digest.update(chunk)
            file.write(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Written(size, digest.hexdigest())


def _chunks(data: memoryview) -> Iterator[memoryview]:
    return (data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES))


def shard_record(parts: Sequence[Part], written: Sequence[Written]) -> dict[str, Any]:
    """A process's record."""
    return {
        "files": {p.file: w.as_json() for p, w in zip(parts, written, strict=True)},
        "fragments": [
            {
                "name": fragment.name,
                "shape": list(fragment.shape),
                "start": fragment.start,
                "stop": fragment.stop,
                "file": part.file,
            }
            for part in parts
            for fragment in part.fragments
        ],
    }


def manifest(
    folder: Path,
    step: int,
    world_size: int,
    *,
    binding: str,
    checkpoint: bool,
    segment_start: int = 0,
) -> dict[str, Any]:
    """The manifest of a folder in which every process's record lies."""
    records = (folder / record_name(rank, world_size) for rank in range(world_size))
    listed = {p.name: Written(p.stat().st_size, digest_file(p)).as_json() for p in records}
    return seal(
        {
            "format": FORMAT,
            "step": step,
            "checkpoint": checkpoint,
            "segment_start": segment_start,
            "binding": binding,
            "world_size": world_size,
            "records": listed,
        }
    )


def publish(building: Path, folder: Path) -> None:
    """Give a finished state its name; one that has it already makes room."""
    replaced = building.with_name(f".{folder.name}.replaced.tmp")
    if os.path.lexists(folder):
        folder.rename(replaced)
    building.rename(folder)
    fsync(folder.parent)
    if os.path.lexists(replaced):
        remove_state(replaced)
