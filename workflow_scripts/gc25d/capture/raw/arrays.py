"""Named arrays in an npz file, without pickle: checked when read, equal bytes for equal arrays."""

import io
import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from gc25d.errors import UserError
from gc25d.files import atomic_path

LARGEST = 1 << 30
"""The most bytes that one array may unpack to: the cameras of eight million frames."""
_HEADER = 1 << 14  # bytes, more than the header of a numeric array has
_PIECE = 1 << 20  # bytes unpacked at a time

# What numpy and zipfile raise on damaged bytes; RuntimeError: flags that ask for decryption.
_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write named arrays as one npz, atomically; equal arrays give equal bytes."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_array(
    path: Path, name: str, shape: tuple[int | None, ...], dtype: type[np.generic] | None = None
) -> np.ndarray:
    """The array `name` of an npz, as `dtype`; None in `shape` stands for any length.

    Its header is checked before any of its numbers is unpacked, and no more is unpacked than the
    header says.

    Raises:
        UserError: no such file or array, the array twice, no numbers, another shape, more than
            `LARGEST` bytes, or numbers that an integer `dtype` does not hold.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            times = archive.namelist().count(f"{name}.npy")
            if times != 1:
                raise _wrong(path, f"has {times or 'no'} array{'s' * (times > 1)} {name!r}")
            with archive.open(f"{name}.npy") as member:
                header, begun = _read_header(member)
                _check_header(path, name, header, shape)
                found = _read_numbers(member, header, begun)
    except FileNotFoundError:
        raise UserError(f"{path}: not found: capture the run again") from None
    except _DAMAGED as error:
        raise UserError(f"{path}: not readable as npz ({error}): copy it again") from None
    with np.errstate(over="ignore", invalid="ignore"):
        asked = np.asarray(found, dtype)
    if asked.dtype.kind in "iu" and (asked != found).any():
        raise _wrong(path, f"{name} holds {found[asked != found][0]}, expected {asked.dtype}")
    return asked


@dataclass(frozen=True)
class _Header:
    """What an npy file says of its array."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def _read_header(member: IO[bytes]) -> tuple[_Header, bytes]:
    """An npy file's header, and the numbers that were read with it."""
    data = member.read(_HEADER)
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = _Header(*np.lib.format.read_array_header_1_0(stream))
    elif version == (2, 0):
        header = _Header(*np.lib.format.read_array_header_2_0(stream))
    else:
        raise ValueError(f"npy format {version}, expected 1.0 or 2.0")
    if header.dtype.hasobject or min(header.shape, default=0) < 0:
        raise ValueError(f"an array of {header.dtype} {list(header.shape)}")
    return header, data[stream.tell() :]


def _check_header(path: Path, name: str, header: _Header, shape: tuple[int | None, ...]) -> None:
    fits = len(header.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, header.shape, strict=True)
    )
    found = f"{name} is {header.dtype} {list(header.shape)}"
    if not fits or header.dtype.kind not in "fiu":
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise _wrong(path, f"{found}, expected numbers [{wanted}]")
    if header.size > LARGEST:
        raise _wrong(path, f"{found}: {header.size} bytes, expected at most {LARGEST}")


def _read_numbers(member: IO[bytes], header: _Header, begun: bytes) -> np.ndarray:
    """The array; the archive's checksum is compared at its end."""
    data = bytearray(begun)
    while len(data) <= header.size and (piece := member.read(_PIECE)):
        data += piece
    if len(data) != header.size:
        raise ValueError(f"{len(data)} bytes or more, its header says {header.size}")
    order: Literal["C", "F"] = "F" if header.fortran_order else "C"
    return np.ndarray(header.shape, header.dtype, buffer=data, order=order)


def _wrong(path: Path, what: str) -> UserError:
    return UserError(f"{path}: {what}: correct the exporter")


def frames_of(array: np.ndarray, path: Path, start: int, count: int | None) -> np.ndarray:
    """Frames start … start + count − 1 (all from `start` for None) of an array read from `path`.

    Raises:
        UserError: they lie outside the array.
    """
    end = len(array) if count is None else start + count
    if not 0 <= start <= end <= len(array):
        raise UserError(
            f"{path}: frames {start}..{end - 1} asked of {len(array)}: shorten the clip, or "
            "capture the run again"
        )
    return array[start:end]
