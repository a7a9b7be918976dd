"""Safetensors files whose bytes repeat: the same tensors and metadata give the same SHA-256."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gc25d.errors import UserError
from gc25d.files import atomic_path
from gc25d.strict_json import parse_json

_LENGTH_BYTES = 8  # a little-endian header length stands before the header
_HEADER_LIMIT = 100_000_000  # bytes; the library's own limit


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and string metadata atomically."""
    with atomic_path(path) as temporary:
        save_file(
            {name: tensor.detach().contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata=dict(metadata) or None,  # an empty one makes an illegal header of no tensors
        )
        _sort_header(temporary)


def _sort_header(path: Path) -> None:
    """Rewrite the header with sorted metadata: the library writes it in random order."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
        metadata = dict(sorted(header.pop("__metadata__", {}).items()))
        ordered = {"__metadata__": metadata, **header} if metadata else header
        text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(_LENGTH_BYTES)
        file.write(text.ljust(length))


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata strings of a file.

    Raises:
        UserError: the file is missing, cut or no safetensors file.
    """
    with open_tensors(path) as file:
        return dict(file.metadata() or {})


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The header's length in bytes and its content: `__metadata__` and a row for each tensor.

    Raises:
        OSError: the file cannot be read.
        ValueError: it starts with no header of strict JSON: cut, too long, a name twice.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _HEADER_LIMIT:
            raise ValueError(f"a header of {length} bytes, expected at most {_HEADER_LIMIT}")
        text = file.read(length)
    if len(text) < length:
        raise ValueError(f"its header is cut after {len(text)} of {length} bytes")
    header = parse_json(text)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return length, header


def open_tensors(path: Path, *, indexed: bool = False) -> safe_open:
    """Open a file for memory-mapped reading on the CPU.

    Args:
        path: of the file.
        indexed: whether what is read is compared with a digest of its own. Otherwise the header is
            read a second time for names that it holds twice, of which the library keeps one.

    Raises:
        UserError: the file is missing, cut or no safetensors file, or holds a name twice.
    """
    try:
        if not indexed:
            read_header(path)
        return safe_open(path, framework="pt", device="cpu")
    except FileNotFoundError:
        raise UserError(f"{path}: not found") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a whole .safetensors file ({error}): write it anew") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, memory-mapped.

    Raises:
        UserError: the file is missing, cut or no safetensors file.
    """
    return dict(iterate_tensors(path))


def iterate_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor, sorted by name, one at a time."""
    with open_tensors(path) as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name)


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
