"""Named arrays in an npz file, without pickle: read with checks, written so that bytes repeat."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from gc25d.errors import UserError
from gc25d.records import atomic_path

# What numpy and zipfile raise on damaged bytes; RuntimeError: flags that ask for decryption.
_DAMAGED = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    RuntimeError,
    MemoryError,
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

    Raises:
        UserError: no such file or array, no numbers, or another shape.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = archive[name]
    except FileNotFoundError:
        raise UserError(f"{path}: not found: capture the run again") from None
    except KeyError:
        raise UserError(f"{path}: has no array {name!r}: correct the exporter") from None
    except _DAMAGED as error:
        raise UserError(f"{path}: not readable as npz ({error}): copy it again") from None
    fits = len(found.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found.shape, strict=True)
    )
    if not fits or found.dtype.kind not in "fiu":
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise UserError(
            f"{path}: {name} is {found.dtype} {list(found.shape)}, expected numbers [{wanted}]: "
            "correct the exporter"
        )
    return np.asarray(found, dtype)


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
