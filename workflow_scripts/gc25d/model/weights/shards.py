"""Write Wan weights as native shards or as a diffusers `transformer/` directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.model.config import PATCH, WanConfig
from gc25d.model.weights.files import CONDITION_FILE, INDEX_SUFFIX, WEIGHTS_STEM
from gc25d.model.weights.names import CONDITION_PREFIX, to_diffusers
from gc25d.records import write_json
from gc25d.tensors import write_tensors

SHARD_BYTES = 5 * 10**9


def save_native_shards(
    tensors: Mapping[str, Tensor],
    config: WanConfig,
    directory: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    text_len: int = 512,
) -> None:
    """Write weights with native names, an index when there are several shards, and config.json.

    Args:
        tensors: native names, e.g. a model's `state_dict()`.
        config: of the model.
        directory: created if need be; earlier weights in it are replaced.
        dtype: of the files. Only one shard at a time is held converted.
        shard_bytes: size from which a new shard starts.
        text_len: rows to which Wan's own code pads a prompt; ours asks the prompts.
    """
    _write_directory(tensors, _native_config(config, text_len), directory, dtype, shard_bytes)


def save_diffusers(
    tensors: Mapping[str, Tensor],
    config: WanConfig,
    directory: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write weights as diffusers' `WanTransformer3DModel.from_pretrained` reads them.

    diffusers has no semantic condition: its tensors go to a file of their own beside the weights,
    which `load_base` reads and diffusers passes over. Arguments as in `save_native_shards`.
    """
    base = {to_diffusers(n): t for n, t in tensors.items() if not n.startswith(CONDITION_PREFIX)}
    condition = {n: t for n, t in tensors.items() if n.startswith(CONDITION_PREFIX)}
    _write_directory(base, _diffusers_config(config), directory, dtype, shard_bytes)
    if condition:
        write_tensors(directory / CONDITION_FILE, _converted(condition, dtype), {"format": "pt"})


def _write_directory(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    directory: Path,
    dtype: torch.dtype,
    shard_bytes: int,
) -> None:
    """Earlier weights go first and the index comes last: a cut write is never taken for whole."""
    directory.mkdir(parents=True, exist_ok=True)
    index = directory / f"{WEIGHTS_STEM}{INDEX_SUFFIX}"
    index.unlink(missing_ok=True)
    for stale in (*directory.glob(f"{WEIGHTS_STEM}*.safetensors"), directory / CONDITION_FILE):
        stale.unlink(missing_ok=True)
    write_json(directory / "config.json", config)
    shards = _split(tensors, dtype, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        suffix = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        file = f"{WEIGHTS_STEM}{suffix}.safetensors"
        shard = _converted({name: tensors[name] for name in names}, dtype)
        write_tensors(directory / file, shard, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        total = sum(_bytes(tensor, dtype) for tensor in tensors.values())
        write_json(index, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _split(tensors: Mapping[str, Tensor], dtype: torch.dtype, shard_bytes: int) -> list[list[str]]:
    """Names in order, cut so that only a shard of one tensor can exceed `shard_bytes`."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        size = _bytes(tensor, dtype)
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _bytes(tensor: Tensor, dtype: torch.dtype) -> int:
    return tensor.numel() * dtype.itemsize


def _converted(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", dtype) for name, tensor in tensors.items()}


def _native_config(config: WanConfig, text_len: int) -> dict[str, Any]:
    return {
        "_class_name": "WanModel",
        "model_type": "ti2v",
        "dim": config.dim,
        "ffn_dim": config.ffn_dim,
        "freq_dim": config.freq_dim,
        "text_dim": config.text_dim,
        "in_dim": config.in_channels,
        "out_dim": config.out_channels,
        "num_heads": config.num_heads,
        "num_layers": config.num_layers,
        "text_len": text_len,
        "eps": config.eps,
    }


def _diffusers_config(config: WanConfig) -> dict[str, Any]:
    return {
        "_class_name": "WanTransformer3DModel",
        "patch_size": list(PATCH),
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.head_dim,
        "in_channels": config.in_channels,
        "out_channels": config.out_channels,
        "text_dim": config.text_dim,
        "freq_dim": config.freq_dim,
        "ffn_dim": config.ffn_dim,
        "num_layers": config.num_layers,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": config.eps,
    }
