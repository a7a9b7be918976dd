"""Seeded weights of a healthy size for a measured model."""

import torch
from torch import nn

GAINS = {
    "gc_sem_cond.proj_in.weight": 5.0,
    "gc_sem_cond.proj_mid.weight": 3.0,
    "gc_sem_cond.proj_out.weight": 3.0,
    # Wan's models
    ".self_attn.norm_q.weight": 3.0,
    ".self_attn.v.weight": 2.0,
    ".self_attn.o.weight": 3.0,
    ".cross_attn.o.weight": 1.6,
    ".action_model.t_qkv.weight": 1.3,
    ".action_model.proj_mouse.weight": 4.0,
    ".action_model.proj_keyboard.weight": 2.5,
    # hunyuan
    ".attn.norm_q.weight": 3.0,
    ".attn.add_v_proj.weight": 2.5,
    ".attn.to_out.0.weight": 3.0,
    # cosmos
    ".attn1.norm_q.weight": 3.0,
    ".attn1.to_out.0.weight": 1.5,
    ".attn2.to_out.0.weight": 4.0,
}
"""Factors on top of a healthy size, by a name's ending. They share block 0's gradient out among
attention, text, condition and actions, so that losing any of them moves the norm by more than the
tolerance: with all factors 1 it moves by one or two percent."""


def randomise(model: nn.Module, seed: int, prefix: str = "") -> None:
    """Overwrite the parameters under `prefix` with seeded noise of a healthy size, by name.

    A fresh model has zero output layers, through which no gradient reaches block 0. Matrices get
    a standard deviation of 1/√fan_in, vectors 0.1 around 1 (norm weights) or 0; all times `GAINS`.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not name.startswith(prefix):
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and not name.endswith("modulation"):
                drawn /= parameter[0].numel() ** 0.5
            else:
                drawn = 0.1 * drawn + float("norm" in name and name.endswith("weight"))
            parameter.copy_(gain(name) * drawn)


def gain(name: str) -> float:
    """How much louder a parameter is than others of its shape."""
    return next((gain for ending, gain in GAINS.items() if name.endswith(ending)), 1.0)


def gains_of(model: nn.Module) -> dict[str, float]:
    """The gains that a model's parameters have, by ending."""
    names = [name for name, _ in model.named_parameters()]
    return {
        ending: gain
        for ending, gain in GAINS.items()
        if any(name.endswith(ending) for name in names)
    }


def parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Shape of each parameter by name, frozen ones too: freezing is a fault, not a new fixture."""
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}
