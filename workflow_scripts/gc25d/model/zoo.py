"""Model sizes, seeded construction, and recovering a configuration from a checkpoint."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Generator, Tensor, nn

from gc25d.errors import UserError
from gc25d.model.config import CELLS_PER_TOKEN, VOCABS, Vocab, WanConfig
from gc25d.model.semantic import class_count
from gc25d.model.wan import WanModel

__all__ = ["SIZES", "WanConfig", "build_model", "config_from_tensors", "wan_config"]

SIZES: dict[str, WanConfig] = {
    "tiny": WanConfig(dim=192, ffn_dim=512, num_heads=6, num_layers=6, cond_dim=128),
    "1.3b": WanConfig(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30),
    "5b": WanConfig(dim=3072, ffn_dim=14336, num_heads=24, num_layers=30),
}

_EMBEDDING_STD = 0.02


def wan_config(size: str, vocab: Vocab | None, text_dim: int, text_len: int) -> WanConfig:
    """The configuration of a named size.

    Raises:
        UserError: an unknown size.
    """
    if size not in SIZES:
        raise UserError(f"model size {size!r} is unknown: choose one of {', '.join(SIZES)}")
    return dataclasses.replace(SIZES[size], vocab=vocab, text_dim=text_dim, text_len=text_len)


def build_model(config: WanConfig, seed: int, *, zero_head: bool = True) -> WanModel:
    """A float32 model on the CPU with Wan's initialisation, a pure function of the arguments.

    Base weights do not depend on the vocabulary. The global generator is left untouched.

    Args:
        config: shape of the model.
        seed: of the weights.
        zero_head: as Wan has it: the first prediction is zero and so is every gradient before the
            head. False draws the head's weights too, for checks that need gradients.
    """
    with torch.device("meta"):
        model = WanModel(config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            _initialise(name, module, generator)
        if zero_head:
            model.head.head.weight.zero_()
        if model.gc_sem_cond is not None:
            model.gc_sem_cond.proj_out.weight.zero_()
    return model


def _initialise(name: str, module: nn.Module, generator: Generator) -> None:
    """Draw a module's own parameters: norms 1, biases 0, text and time embeddings N(0, 0.02²)."""
    for key, parameter in module.named_parameters(recurse=False):
        if key == "modulation":
            parameter.normal_(generator=generator).div_(parameter.shape[-1] ** 0.5)
        elif key == "bias":
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        elif name.startswith(("text_embedding", "time_embedding")):
            parameter.normal_(std=_EMBEDDING_STD, generator=generator)
        else:
            _xavier(parameter, generator)


def _xavier(weight: Tensor, generator: Generator) -> None:
    """Glorot's uniform initialisation of a weight seen as [out, in]."""
    flat = weight.flatten(1)
    bound = math.sqrt(6 / (flat.shape[0] + flat.shape[1]))
    flat.uniform_(-bound, bound, generator=generator)


def config_from_tensors(shapes: Mapping[str, Sequence[int]], text_len: int = 512) -> WanConfig:
    """The configuration whose parameters have these native names and shapes.

    `text_len` is not in the shapes.

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
                text_len=text_len,
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
