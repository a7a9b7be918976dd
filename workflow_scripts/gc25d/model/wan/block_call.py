"""Calling a block: with the device's attention back ends, and recomputed if that was chosen."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gc25d.model.attention import attention_backends


def block_call(block: nn.Module, device: torch.device, *, again: bool) -> Callable[..., Tensor]:
    """`block` as a function, recomputed in the backward pass if `again`.

    The attention back ends are chosen inside: a recomputation takes those of the first pass.
    """
    call = functools.partial(_with_backends, block, device)
    if again and torch.is_grad_enabled():
        return functools.partial(checkpoint, call, use_reentrant=False, preserve_rng_state=False)
    return call


def _with_backends(block: nn.Module, device: torch.device, *inputs: Any) -> Tensor:
    with attention_backends(device):
        result: Tensor = block(*inputs)
    return result
