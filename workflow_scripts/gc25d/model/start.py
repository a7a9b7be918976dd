"""The model of a run: its configuration and the weights it starts from."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.model.wan import WanModel
from gc25d.model.weights import load_base, load_tensors
from gc25d.model.zoo import WanConfig, build_model, wan_config
from gc25d.step_settings import TrainStep
from gc25d.tensors import read_metadata


def model_config(settings: TrainStep) -> WanConfig:
    """The configuration of the model that a run trains.

    Raises:
        UserError: an unknown size.
    """
    model = settings.model
    return wan_config(model.size, model.vocab, settings.text_dim, settings.text_length)


def starting_model(config: WanConfig, seed: int, init_dir: str, init_ckpt: str) -> WanModel:
    """A model from its seed, with base weights or a warm start loaded over it (fp32, CPU).

    Base weights know no semantic condition: it starts at zero effect.

    Raises:
        UserError: weights missing or misshapen, or a warm start trained with another vocab.
    """
    model = build_model(config, seed)
    if init_dir:
        load_base(model, Path(init_dir))
    if init_ckpt:
        vocab = read_metadata(Path(init_ckpt)).get("vocab")
        if vocab is None:
            raise UserError(
                f"model.init_ckpt {init_ckpt} is no export of gc25d (its metadata names no vocab): "
                "give plain Wan weights as model.init_dir"
            )
        if vocab != config.vocab:
            raise UserError(
                f"model.init_ckpt {init_ckpt}: its vocab is {vocab}, this run's is {config.vocab}: "
                "set model.vocab to match, or start from another file"
            )
        load_tensors(model, Path(init_ckpt))
    return model


def model_from_tensors(
    config: WanConfig, tensors: Mapping[str, Tensor], device: torch.device
) -> WanModel:
    """A frozen fp32 model in inference mode with exactly these weights (values copied)."""
    with torch.device("meta"):
        model = WanModel(config)
    weights = {name: tensor.detach().to(device, torch.float32) for name, tensor in tensors.items()}
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval().requires_grad_(False)
