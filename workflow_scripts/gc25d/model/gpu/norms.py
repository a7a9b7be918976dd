"""A block's norms on GPUs, each with what follows it: one pass over the tokens each way.

Torch's compiler makes the same of `RmsNorm` with `apply_rope` and of `modulate`, but takes two to
four times as long as the bytes need (docs/speed.md). Sums have a fixed order, so results repeat
bit for bit. The arithmetic is float32 throughout, whatever the dtypes.
"""

from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gc25d.model.rope import RopeTable

_HAS_TRITON = find_spec("triton") is not None
_PROGRAMS = 512
"""Of a backward pass, about: each sums the gradients of what its rows share."""


def fits(tokens: Tensor) -> bool:
    """Whether these functions serve a tensor."""
    there = _HAS_TRITON and tokens.device.type == "cuda"
    return there and tokens.is_contiguous() and tokens.numel() > 0


def norm_rope(x: Tensor, weight: Tensor, table: RopeTable, eps: float) -> Tensor:
    """Norm x · weight / √(mean(x²) + eps), then rotated.

    Args:
        x: [B, N, D], contiguous, on a GPU; the mean is over D, all heads together.
        weight: [D].
        table: of N tokens and D / heads components.
        eps: added to the mean.

    Returns:
        [B, N, D] in the dtype of `x`.
    """
    rotated: Tensor = _norm_rope(x, weight, table.cos, table.sin, eps)
    return rotated


def norm_modulate(tokens: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Modulated norm(x)·(1 + scale) + shift.

    Args:
        tokens: [B, F·S, D], contiguous, on a GPU.
        shift: float32 [B, F, D], its last dimension contiguous.
        scale: likewise, with the strides of `shift`.
        eps: added to the variance.

    Returns:
        [B, F·S, D] in the tokens' dtype.
    """
    modulated: Tensor = _norm_modulate(tokens, shift, scale, 1.0, eps)
    return modulated


def norm_affine(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm(x)·weight + bias of x [..., D], contiguous; weight and bias float32 [D]."""
    one_frame = x.reshape(1, -1, x.shape[-1])
    normed: Tensor = _norm_modulate(one_frame, bias[None, None], weight[None, None], 0.0, eps)
    return normed.view(x.shape)


@torch.library.custom_op("gc25d::norm_rope", mutates_args=())
def _norm_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    from gc25d.model.gpu import kernels

    out = torch.empty_like(x)
    with _on(x):
        kernels.norm_rope_forward(x, weight, cos, sin, eps, out)
    return out


@torch.library.custom_op("gc25d::norm_rope_backward", mutates_args=())
def _norm_rope_backward(
    grad: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    from gc25d.model.gpu import kernels

    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    each = -(-rows // _PROGRAMS)
    shares = _float32(x, -(-rows // each), width)
    grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
    with _on(x):
        kernels.norm_rope_backward(
            grad.contiguous(), x, weight, cos, sin, eps, grad_x, shares, each
        )
        kernels.sum_shares(shares[None], grad_weight)
    return grad_x, grad_weight


@torch.library.custom_op("gc25d::norm_modulate", mutates_args=())
def _norm_modulate(tokens: Tensor, shift: Tensor, scale: Tensor, base: float, eps: float) -> Tensor:
    from gc25d.model.gpu import kernels

    shift, scale, stride = _one_stride(shift, scale)
    out = torch.empty_like(tokens)
    with _on(tokens):
        kernels.norm_modulate_forward(tokens, shift, scale, stride, base, eps, out)
    return out


@torch.library.custom_op("gc25d::norm_modulate_backward", mutates_args=())
def _norm_modulate_backward(
    grad: Tensor, tokens: Tensor, scale: Tensor, base: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    from gc25d.model.gpu import kernels

    (scale, _, stride), shape = _one_stride(scale, scale), scale.shape
    frames, width = shape[0] * shape[1], tokens.shape[-1]
    rows = tokens.numel() // width
    each = -(-rows // _PROGRAMS)
    parts = -(-rows // frames // each)
    shift_shares, scale_shares = (_float32(tokens, frames, parts, width) for _ in range(2))
    grad_x = torch.empty_like(tokens)
    grad_shift, grad_scale = (_float32(tokens, *shape) for _ in range(2))
    with _on(tokens):
        kernels.norm_modulate_backward(
            *(grad.contiguous(), tokens, scale, stride, base, eps),
            *(grad_x, shift_shares, scale_shares, each),
        )
        kernels.sum_shares(shift_shares, grad_shift)
        kernels.sum_shares(scale_shares, grad_scale)
    return grad_x, grad_shift, grad_scale


def _one_stride(shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, int]:
    """Both, and the elements between two frames' rows of either, samples included."""
    frames = shift.shape[1]
    strides = shift.stride()
    if strides != scale.stride() or strides[2] != 1 or strides[0] != frames * strides[1]:
        shift, scale = shift.contiguous(), scale.contiguous()
    return shift, scale, shift.stride(1)


def _on(tokens: Tensor) -> AbstractContextManager[None]:
    """The tokens' device as the current one, on which Triton launches."""
    current: AbstractContextManager[None] = torch.cuda.device_of(tokens)  # type: ignore[no-untyped-call]
    return current


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@_norm_rope.register_fake
def _(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


@_norm_rope_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


@_norm_modulate.register_fake
def _(tokens: Tensor, shift: Tensor, scale: Tensor, base: float, eps: float) -> Tensor:
    return torch.empty_like(tokens)


@_norm_modulate_backward.register_fake
def _(
    grad: Tensor, tokens: Tensor, scale: Tensor, base: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape = tuple(scale.shape)
    return torch.empty_like(tokens), _float32(scale, *shape), _float32(scale, *shape)


def _remember_rope(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _remember_modulation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tokens, _, scale, *ctx.constants = inputs
    ctx.save_for_backward(tokens, scale)


def _differentiate_rope(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_norm_rope_backward(grad, *ctx.saved_tensors, ctx.eps), None, None, None)


def _differentiate_modulation(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_norm_modulate_backward(grad, *ctx.saved_tensors, *ctx.constants), None, None)


_norm_rope.register_autograd(_differentiate_rope, setup_context=_remember_rope)
_norm_modulate.register_autograd(_differentiate_modulation, setup_context=_remember_modulation)
