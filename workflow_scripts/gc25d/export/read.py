"""A model from one of our exported `.safetensors`."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.model.config import VOCABS, Vocab
from gc25d.model.start import model_from_tensors
from gc25d.model.zoo import AnyConfig, config_from_tensors, named_config
from gc25d.tensors import read_metadata, read_tensors


def load_model(path: Path, device: torch.device) -> nn.Module:
    """The fp32 model that an export holds, frozen, in inference mode.

    Raises:
        UserError: no whole `.safetensors`, or no export of this project.
    """
    config, tensors = read_export(path)
    return model_from_tensors(config, tensors, device)


def read_export(path: Path) -> tuple[AnyConfig, dict[str, Tensor]]:
    """The configuration of an exported model and its tensors, memory-mapped.

    Raises:
        UserError: no whole `.safetensors`, or no export of this project.
    """
    metadata = read_metadata(path)
    if metadata.get("vocab") not in VOCABS:
        raise UserError(
            f"{path}: its metadata names no vocab of {', '.join(VOCABS)}: expected an export of "
            "gc25d"
        )
    tensors = read_tensors(path)
    try:
        return export_config(metadata, tensors), tensors
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: its metadata describes no model ({error})") from None


def export_config(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> AnyConfig:
    """The configuration of an exported model; an export that names none is of `wan`.

    Raises:
        UserError: an unknown model or size.
        KeyError, ValueError: a key of the model's shape is missing or no number.
    """
    if "model" not in metadata:
        return config_from_tensors({name: tuple(t.shape) for name, t in tensors.items()})
    return named_config(
        metadata["model"],
        metadata["size"],
        cast(Vocab, metadata["vocab"]),
        int(metadata["text_dim"]),
        int(metadata["chunk_frames"]),
    )
