"""Is the written file what training made? Every answer comes from the file, read again."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.model.zoo import AnyConfig, construct
from gc25d.tensors import digest_tensors, read_metadata, read_tensors

PROBE_RTOL = 1e-4
"""Bound of the repeated forward pass, relative to its largest value: other threads or another
card add up in another order; on the same machine the difference is 0."""
_ANEW = "export it anew (delete the file, snakemake writes it again)"


def expected_shapes(config: AnyConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of an export."""
    with torch.device("meta"):
        model = construct(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def check_layout(path: Path) -> None:
    """The file is exactly as long as its header says.

    Raises:
        UserError: bytes are missing or left over; names the last tensor and both lengths.
    """
    size = path.stat().st_size
    try:
        length, ends = _read_header(path)
    except (ValueError, LookupError, TypeError, MemoryError, RecursionError):
        raise UserError(f"{path}: its header is no safetensors header: export it anew") from None
    last = max(ends, key=lambda name: ends[name], default="")
    expected = 8 + length + ends.get(last, 0)
    if size != expected:
        raise UserError(
            f"{path}: {size} bytes, expected {expected} (its last tensor is {last}): export it anew"
        )


def _read_header(path: Path) -> tuple[int, dict[str, int]]:
    """Length of the header, bytes, and where each tensor ends behind it.

    Raises:
        ValueError, LookupError, TypeError, MemoryError, RecursionError: no safetensors header.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("longer than the file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise TypeError("no object")
    header.pop("__metadata__", None)
    return length, {name: int(entry["data_offsets"][1]) for name, entry in header.items()}


def check_tensors(
    path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Key set, shapes, dtypes, finite.

    Raises:
        UserError: names the first tensor that is wrong.
    """
    for name in sorted(shapes.keys() - tensors.keys()):
        raise UserError(f"{path}: tensor {name} is missing: export it anew")
    for name in sorted(tensors.keys() - shapes.keys()):
        raise UserError(f"{path}: tensor {name} is not one of the model's {len(shapes)}")
    for name, tensor in sorted(tensors.items()):
        fault = _tensor_fault(tensor, shapes[name])
        if fault:
            raise UserError(f"{path}: tensor {name} {fault}: export it anew")


def _tensor_fault(tensor: Tensor, shape: tuple[int, ...]) -> str | None:
    if tuple(tensor.shape) != shape:
        return f"has shape {tuple(tensor.shape)}, expected {shape}"
    if tensor.dtype != torch.bfloat16:
        return f"is {tensor.dtype}, expected torch.bfloat16"
    if not tensor.isfinite().all():
        return "holds values that are not finite"
    return None


def check_metadata(path: Path, metadata: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """The strings are exactly the run's.

    Raises:
        UserError: names the key that is missing, unknown or wrong.
    """
    for key in sorted(expected.keys() - metadata.keys()):
        raise UserError(f"{path}: metadata {key} is missing: {_ANEW}")
    for key in sorted(metadata.keys() - expected.keys()):
        raise UserError(f"{path}: metadata {key} is not one of an export's: {_ANEW}")
    for key, value in sorted(expected.items()):
        if metadata[key] != value:
            raise UserError(
                f"{path}: metadata {key} is {metadata[key]!r}, expected {value!r}: {_ANEW}"
            )


def check_equal(path: Path, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Every tensor equals the training's, bit for bit.

    Raises:
        UserError: names the first tensor that differs.
    """
    for name, tensor in sorted(tensors.items()):
        if name not in weights or not torch.equal(tensor, weights[name]):
            fault = "differs from" if tensor.any() else "is all zero, unlike"
            raise UserError(f"{path}: tensor {name} {fault} the training's: export it anew")


def check_probe(path: Path, prediction: Tensor, expected: Tensor) -> float:
    """A forward pass of the file equals the trainer's; returns the largest relative difference.

    Raises:
        UserError: it differs by more than `PROBE_RTOL` of the largest value.
    """
    difference = float((prediction - expected).abs().max())
    # A method that has not yet moved its student, whose head starts at zero, predicts zero.
    difference /= float(expected.abs().max()) or 1.0
    if not difference <= PROBE_RTOL:
        raise UserError(
            f"{path}: its forward pass differs from the trainer's by {difference:.2e}, "
            f"expected at most {PROBE_RTOL:.0e}: the model's code changed since it was trained"
        )
    return difference


def verify_file(
    path: Path,
    weights: Mapping[str, Tensor],
    config: AnyConfig,
    expected_metadata: Callable[[str], Mapping[str, str]],
) -> dict[str, Any]:
    """All checks that need no forward pass; returns what the report says of them.

    Args:
        path: the export.
        weights: the training's, bf16 by native name.
        config: of the model.
        expected_metadata: what the metadata must say of tensors with this SHA-256.

    Raises:
        UserError: the first check that fails.
    """
    check_layout(path)
    metadata = read_metadata(path)
    tensors = read_tensors(path)
    check_tensors(path, tensors, expected_shapes(config))
    check_equal(path, tensors, weights)
    digest = digest_tensors(tensors)
    check_metadata(path, metadata, expected_metadata(digest))
    return {
        "file": str(path),
        "sha256": digest_file(path),
        "bytes": path.stat().st_size,
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "dtype": "bfloat16",
        "tensors_sha256": digest,
        "metadata": metadata,
    }
