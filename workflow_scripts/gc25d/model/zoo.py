"""The models by name and size: configuration, construction and seeded initialisation."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias, overload

import torch
from torch import nn

from gc25d.errors import UserError
from gc25d.model.config import (
    CELLS_PER_TOKEN,
    VOCABS,
    CausalConfig,
    CosmosConfig,
    HunyuanConfig,
    MatrixGameConfig,
    Vocab,
    WanConfig,
)
from gc25d.model.semantic import class_count
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.wan.matrixgame import MatrixGameModel
from gc25d.model.wan.transformer import WanModel
from gc25d.model.weights.initialise import draw_weights
from gc25d.settings.cells import UNAVAILABLE

__all__ = [
    "COSMOS_SIZES",
    "FAMILIES",
    "HUNYUAN_SIZES",
    "SIZES",
    "AnyConfig",
    "WanConfig",
    "build_model",
    "config_from_tensors",
    "construct",
    "empty_model",
    "named_config",
    "wan_config",
]

AnyConfig: TypeAlias = WanConfig | HunyuanConfig | CosmosConfig

SIZES: dict[str, WanConfig] = {
    "tiny": WanConfig(dim=192, ffn_dim=512, num_heads=6, num_layers=6, cond_dim=128),
    "1.3b": WanConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30),
    "5b": WanConfig(dim=3072, ffn_dim=14336, num_heads=24, num_layers=30),
}
"""Wan's sizes; those of `wan_causal` and, with action modules, of `matrixgame2` too."""

HUNYUAN_SIZES: dict[str, HunyuanConfig] = {
    "tiny": HunyuanConfig(
        num_heads=4,
        head_dim=24,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        rope_dims=(8, 8, 8),
        cond_dim=128,
    ),
    "13b": HunyuanConfig(),
}
COSMOS_SIZES: dict[str, CosmosConfig] = {
    "tiny": CosmosConfig(num_heads=4, head_dim=24, num_layers=4, adaln_dim=32, cond_dim=128),
    "2b": CosmosConfig(),
    "14b": CosmosConfig(num_heads=40, num_layers=36, rope_scale=(20 / 24, 2.0, 2.0)),
}
FAMILIES: dict[str, Mapping[str, AnyConfig]] = {
    "wan": SIZES,
    "wan_causal": SIZES,
    "matrixgame2": SIZES,
    "hunyuan": HUNYUAN_SIZES,
    "cosmos": COSMOS_SIZES,
}
"""Sizes of each model."""


def named_config(
    name: str, size: str, vocab: Vocab | None, text_dim: int, chunk_frames: int
) -> AnyConfig:
    """The configuration of a model by name and size.

    Args:
        name: one of `FAMILIES`.
        size: one of the model's.
        vocab: semantic vocabulary, None for a model without a semantic condition.
        text_dim: width of a prompt's token embedding.
        chunk_frames: latent frames of a chunk, for the causal models.

    Raises:
        UserError: an unknown or unavailable name, or a size that the model does not have.
    """
    if name in UNAVAILABLE:
        raise UserError(f"model {name} is not available: {UNAVAILABLE[name]}; {_choices()}")
    if name not in FAMILIES:
        raise UserError(f"model {name!r} is unknown: {_choices()}")
    if size not in FAMILIES[name]:
        raise UserError(
            f"model size {size!r} is unknown: choose one of {', '.join(FAMILIES[name])} for {name}"
        )
    config = FAMILIES[name][size]
    if not isinstance(config, WanConfig):
        return dataclasses.replace(config, vocab=vocab, text_dim=text_dim)
    shared = dataclasses.asdict(wan_config(size, vocab, text_dim))
    if name == "wan_causal":
        return CausalConfig(**shared, chunk_frames=chunk_frames)
    if name == "matrixgame2":
        game = MatrixGameConfig(**shared, chunk_frames=chunk_frames)
        return _with_tiny_actions(game) if size == "tiny" else game
    return WanConfig(**shared)


def _with_tiny_actions(config: MatrixGameConfig) -> MatrixGameConfig:
    return dataclasses.replace(config, action_blocks=3, action_dim=96, action_heads=4, key_dim=32)


def _choices() -> str:
    return f"choose one of {', '.join(FAMILIES)}"


def wan_config(size: str, vocab: Vocab | None, text_dim: int) -> WanConfig:
    """The configuration of a named size of `wan`.

    Raises:
        UserError: an unknown size.
    """
    if size not in SIZES:
        raise UserError(f"model size {size!r} is unknown: choose one of {', '.join(SIZES)}")
    return dataclasses.replace(SIZES[size], vocab=vocab, text_dim=text_dim)


@overload
def construct(config: WanConfig) -> WanModel: ...


@overload
def construct(config: AnyConfig) -> nn.Module: ...


def construct(config: AnyConfig) -> nn.Module:
    """The model of a configuration, its weights as its library leaves them.

    Under `torch.device("meta")` this is cheap. Loads diffusers for models that come from it.
    """
    match config:
        case MatrixGameConfig():
            return MatrixGameModel(config)
        case CausalConfig():
            return CausalWanModel(config, config.chunk_frames)
        case WanConfig():
            return WanModel(config)
        case HunyuanConfig():
            from gc25d.model.borrowed.hunyuan import HunyuanModel

            return HunyuanModel(config)
        case CosmosConfig():
            from gc25d.model.borrowed.cosmos import CosmosModel

            return CosmosModel(config)


@overload
def empty_model(config: WanConfig, device: torch.device) -> WanModel: ...


@overload
def empty_model(config: AnyConfig, device: torch.device) -> nn.Module: ...


def empty_model(config: AnyConfig, device: torch.device) -> nn.Module:
    """A float32 model on `device` whose weights are whatever the memory held."""
    with torch.device("meta"):
        model = construct(config)
    return model.to_empty(device=device)


@overload
def build_model(config: WanConfig, seed: int, *, zero_head: bool = True) -> WanModel: ...


@overload
def build_model(config: AnyConfig, seed: int, *, zero_head: bool = True) -> nn.Module: ...


def build_model(config: AnyConfig, seed: int, *, zero_head: bool = True) -> nn.Module:
    """A float32 model on the CPU with Wan's initialisation, a pure function of the arguments.

    Base weights do not depend on the vocabulary, nor any on whether there are action modules. The
    global generator is left untouched.

    Args:
        config: shape of the model.
        seed: of the weights.
        zero_head: as Wan has it: the first prediction is zero and so is every gradient before the
            head. False draws the head's weights too, for checks that need gradients.
    """
    model = empty_model(config, torch.device("cpu"))
    draw_weights(model, seed, zero_head=zero_head)
    return model


def config_from_tensors(shapes: Mapping[str, Sequence[int]]) -> WanConfig:
    """The configuration whose parameters have these native names and shapes.

    Raises:
        UserError: no Wan checkpoint, or of a size that `SIZES` does not have.
    """
    try:
        dim, in_channels = shapes["patch_embedding.weight"][:2]
        text_dim = shapes["text_embedding.0.weight"][1]
    except KeyError as error:
        raise UserError(f"tensor {error} is missing: expected a Wan checkpoint") from None
    layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    for config in SIZES.values():
        if (config.dim, config.num_layers) == (dim, layers):
            return dataclasses.replace(
                config,
                in_channels=in_channels,
                text_dim=text_dim,
                vocab=_vocab_of(shapes.get("gc_sem_cond.proj_in.weight")),
            )
    known = ", ".join(f"{name} {c.dim} x {c.num_layers}" for name, c in SIZES.items())
    raise UserError(
        f"the checkpoint is {dim} wide and has {layers} blocks, expected one of: {known}"
    )


def _vocab_of(shape: Sequence[int] | None) -> Vocab | None:
    """The vocabulary whose occupancy is as wide as `gc_sem_cond.proj_in` reads."""
    if shape is None:
        return None
    for vocab in VOCABS:
        if CELLS_PER_TOKEN * class_count(vocab) == shape[1]:
            return vocab
    raise UserError(
        f"gc_sem_cond.proj_in.weight is {tuple(shape)}: its width fits no vocabulary "
        f"({', '.join(VOCABS)})"
    )
