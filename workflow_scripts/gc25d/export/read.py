"""A model from one of our exported `.safetensors`."""

from pathlib import Path

import torch

from gc25d.errors import UserError
from gc25d.model.start import model_from_tensors
from gc25d.model.wan import WanModel
from gc25d.model.zoo import config_from_tensors
from gc25d.tensors import read_metadata, read_tensors


def load_model(path: Path, device: torch.device) -> WanModel:
    """The fp32 model that an export holds, frozen, in inference mode.

    Raises:
        UserError: no whole `.safetensors`, or no export of this project.
    """
    if "vocab" not in read_metadata(path):
        raise UserError(f"{path}: its metadata names no vocab: expected an export of gc25d")
    tensors = read_tensors(path)
    config = config_from_tensors({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return model_from_tensors(config, tensors, device)
