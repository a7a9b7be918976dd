"""Seeded initial weights, as Wan draws them; a pure function of the seed on every device."""

import math

import torch
from torch import Generator, Tensor, nn

from gc25d.model.weights.names import ACTIONS, CONDITION_PREFIX, is_action, is_condition

_EMBEDDING_STD = 0.02
_HEADS = ("head.head.weight", "transformer.proj_out.weight")
_ADDITIONS = (
    f"{CONDITION_PREFIX}proj_out.weight",
    f"{ACTIONS}proj_mouse.weight",
    f"{ACTIONS}proj_keyboard.weight",
)
"""What must not change a model's predictions before it is trained."""


def draw_weights(model: nn.Module, seed: int, *, zero_head: bool) -> None:
    """Draw all weights; base weights do not depend on what is added to them."""
    generator = torch.Generator().manual_seed(seed)
    _draw(model, generator, additions=False)
    _draw(model, generator, additions=True)
    _zero(model, _ADDITIONS + (_HEADS if zero_head else ()))


def draw_additions(model: nn.Module, seed: int) -> None:
    """Draw what base weights lack: the semantic condition and action modules, at zero effect."""
    _draw(model, torch.Generator().manual_seed(seed), additions=True)
    _zero(model, _ADDITIONS)


def _draw(model: nn.Module, generator: Generator, *, additions: bool) -> None:
    """Draw the base weights, or those added to them: the condition, then action modules."""
    ordered = sorted(model.named_modules(), key=lambda named: is_action(named[0]))
    with torch.no_grad():
        for name, module in ordered:
            if (is_condition(name) or is_action(name)) == additions:
                _initialise(name, module, generator)


def _zero(model: nn.Module, endings: tuple[str, ...]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(endings):
                parameter.zero_()


def _initialise(name: str, module: nn.Module, generator: Generator) -> None:
    """Draw a module's own parameters: norms 1, biases 0, text and time embeddings N(0, 0.02²)."""
    for key, parameter in module.named_parameters(recurse=False):
        drawn = torch.empty_like(parameter, device="cpu")  # every device gets the same weights
        if key == "modulation":
            drawn.normal_(generator=generator).div_(drawn.shape[-1] ** 0.5)
        elif key == "bias":
            drawn.zero_()
        elif drawn.ndim == 1:
            drawn.fill_(1.0)
        elif name.startswith(("text_embedding", "time_embedding")):
            drawn.normal_(std=_EMBEDDING_STD, generator=generator)
        else:
            _xavier(drawn, generator)
        parameter.copy_(drawn)


def _xavier(weight: Tensor, generator: Generator) -> None:
    """Glorot's uniform initialisation of a weight seen as [out, in]."""
    flat = weight.flatten(1)
    bound = math.sqrt(6 / (flat.shape[0] + flat.shape[1]))
    flat.uniform_(-bound, bound, generator=generator)
