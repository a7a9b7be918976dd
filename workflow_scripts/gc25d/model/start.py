"""The model of a run: its configuration and the weights it starts from."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.model.weights.files import load_base, load_tensors
from gc25d.model.weights.initialise import draw_additions
from gc25d.model.zoo import (
    AnyConfig,
    build_model,
    construct,
    empty_model,
    named_config,
)
from gc25d.settings.steps import TrainStep
from gc25d.tensors import read_metadata

CPU = torch.device("cpu")


def model_config(settings: TrainStep) -> AnyConfig:
    """The configuration of the model that a run trains.

    Raises:
        UserError: a size that this model does not have.
    """
    model = settings.model
    return named_config(model.name, model.size, model.vocab, settings.text_dim, model.chunk_frames)


def starting_model(
    config: AnyConfig,
    seed: int,
    init_dir: str,
    init_ckpt: str,
    device: torch.device = CPU,
) -> nn.Module:
    """The fp32 model that a run starts from: drawn, base weights, or a warm start.

    Weights are copied from the mapped file straight to `device`: beside the model, no more host
    memory is taken than pages of the file, which all processes of a node share. Base weights know
    no semantic condition: it is drawn from the seed and starts at zero effect. A warm start holds
    everything, so `init_dir` is not read then.

    Raises:
        UserError: weights missing or misshapen, or a warm start trained with another vocab.
    """
    if not init_dir and not init_ckpt:
        return build_model(config, seed).to(device)
    model = empty_model(config, device)
    if init_ckpt:
        _check_vocab(Path(init_ckpt), config)
        load_tensors(model, Path(init_ckpt))
    else:
        draw_additions(model, seed)
        load_base(model, Path(init_dir))
    return model


def _check_vocab(init_ckpt: Path, config: AnyConfig) -> None:
    """Refuse a warm start that is no export, or whose classes are not this run's."""
    vocab = read_metadata(init_ckpt).get("vocab")
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


def model_from_tensors(
    config: AnyConfig, tensors: Mapping[str, Tensor], device: torch.device
) -> nn.Module:
    """A frozen fp32 model in inference mode with exactly these weights (values copied)."""
    with torch.device("meta"):
        model = construct(config)
    weights = {
        name: tensor.detach().to(device, torch.float32, copy=True)
        for name, tensor in tensors.items()
    }
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval().requires_grad_(False)
