"""Scaled dot-product attention and the choice of its back end."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

_VARIANTS = 64
_FLEX_TOKENS = 1024  # shorter sequences take next to no time in any kernel
_HOPPER = (9, 0)  # compute capability from which cuDNN's kernels beat flash


@functools.cache
def preferred_backends(device: torch.device) -> tuple[SDPBackend, ...]:
    """Back ends for `device`, best first; empty on devices with a single implementation.

    At 8,190 tokens × 24 heads × 128 on an H200, forward and backward, cuDNN reaches
    563 TFLOP/s and flash 309. The last two serve masks and shapes that the first refuse.
    """
    if device.type != "cuda":
        return ()
    fallbacks = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    fast = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    if torch.cuda.get_device_capability(device) < _HOPPER:
        fast = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    return (*fast, *fallbacks)


def attention_backends(device: torch.device) -> AbstractContextManager[None]:
    """A context in which `attend` uses the preferred back ends of `device`.

    Entered around the blocks, because `torch.compile` fixes the back end when it first traces one.
    """
    backends = preferred_backends(device)
    if not backends:
        return nullcontext()
    context: AbstractContextManager[None] = sdpa_kernel(list(backends), set_priority=True)
    return context


def allow_variants() -> None:
    """Let torch compile one piece of code for many shapes: past its limit it goes on uncompiled.

    A limit of all models together: training, validation and sampling with a cache are variants of a
    block, and so are the lengths of a roll-out's keys.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VARIANTS)


@functools.cache
def flex_kernel() -> Callable[..., Tensor]:
    """`flex_attention`, compiled at its first call: uncompiled it computes all logits."""
    allow_variants()
    return torch.compile(flex_attention, dynamic=False)


def _needs_flex(query: Tensor) -> bool:
    """Whether gradients of long sequences must be the same bits each time, on a GPU.

    cuDNN and flash add up the queries' gradient in any order. Torch's deterministic mode leaves
    flash's ordered variant, 14.5 ms forward and backward at the shape above; flex attention adds in
    order too and takes 7.7 ms, cuDNN 5.2.
    """
    wanted = torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled()
    return wanted and query.device.type == "cuda" and query.shape[-2] >= _FLEX_TOKENS


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·kᵀ / √d + bias)·v, without dropout.

    Args:
        query: [B, N, heads, d].
        key: [B, M, heads, d].
        value: [B, M, heads, d].
        bias: added to the logits, [B, M] in the query's dtype.

    Returns:
        [B, N, heads · d].
    """
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if bias is None and _needs_flex(query):
        return flex_kernel()(query, key, value).transpose(1, 2).flatten(2)
    mask = None if bias is None else bias[:, None, None, :]
    heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return heads.transpose(1, 2).flatten(2)
