"""Is the written file what training made? Every answer comes from the file, read again."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.export.write import METADATA_KEYS
from gc25d.model.zoo import AnyConfig, construct
from gc25d.records import digest_file
from gc25d.tensors import digest_tensors, read_metadata, read_tensors

PROBE_RTOL = 1e-4
"""Bound of the repeated forward pass, relative to its largest value: other threads or another
card add up in another order; on the same machine the difference is 0."""


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
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(length))
        except (struct.error, ValueError, MemoryError, OverflowError):
            raise UserError(
                f"{path}: its header is no safetensors header: export it anew"
            ) from None
    header.pop("__metadata__", None)
    last = max(header, key=lambda name: int(header[name]["data_offsets"][1]), default="")
    end = int(header[last]["data_offsets"][1]) if last else 0
    expected = 8 + length + end
    if size != expected:
        raise UserError(
            f"{path}: {size} bytes, expected {expected} (its last tensor is {last}): export it anew"
        )


def check_tensors(
    path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Key set, shapes, dtypes, finite, not all zero.

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
    if tensor.ndim > 1 and not tensor.any():
        return "is all zero"
    return None


def check_metadata(path: Path, metadata: Mapping[str, str], vocab: str, step: int) -> None:
    """The strings are there and name this run's vocab and step.

    Raises:
        UserError: names the key that is missing or wrong.
    """
    for key in sorted(set(METADATA_KEYS) - metadata.keys()):
        raise UserError(f"{path}: metadata {key} is missing: export it anew")
    for key, expected in (("vocab", vocab), ("step", str(step))):
        if metadata[key] != expected:
            raise UserError(f"{path}: metadata {key} is {metadata[key]!r}, expected {expected!r}")


def check_equal(path: Path, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Every tensor equals the training's, bit for bit.

    Raises:
        UserError: names the first tensor that differs.
    """
    for name, tensor in sorted(tensors.items()):
        if name not in weights or not torch.equal(tensor, weights[name]):
            raise UserError(f"{path}: tensor {name} differs from the training's: export it anew")


def check_probe(path: Path, prediction: Tensor, expected: Tensor) -> float:
    """A forward pass of the file equals the trainer's; returns the largest relative difference.

    Raises:
        UserError: it differs by more than `PROBE_RTOL` of the largest value.
    """
    difference = float((prediction - expected).abs().max() / expected.abs().max())
    if not difference <= PROBE_RTOL:
        raise UserError(
            f"{path}: its forward pass differs from the trainer's by {difference:.2e}, "
            f"expected at most {PROBE_RTOL:.0e}: the model's code changed since it was trained"
        )
    return difference


def verify_file(
    path: Path, weights: Mapping[str, Tensor], config: AnyConfig, vocab: str, step: int
) -> dict[str, Any]:
    """All checks that need no forward pass; returns what the report says of them.

    Raises:
        UserError: the first check that fails.
    """
    check_layout(path)
    metadata = read_metadata(path)
    check_metadata(path, metadata, vocab, step)
    tensors = read_tensors(path)
    check_tensors(path, tensors, expected_shapes(config))
    check_equal(path, tensors, weights)
    digest = digest_tensors(tensors)
    if digest != metadata["tensors_sha256"]:
        raise UserError(
            f"{path}: its tensors' SHA-256 is {digest}, metadata tensors_sha256 says "
            f"{metadata['tensors_sha256']}: export it anew"
        )
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
