"""Triton kernels of a block's norms; imported only where there is a GPU.

A row is a token's D values. Each program takes a range of rows and keeps in registers what they
share. Sums over rows go to memory by program, and are added in a fixed order by another kernel.
Backward passes load rows before they are needed, as two sums over a row stand in between.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import triton
from torch import Tensor
from triton import language as tl

_FORWARD_ROWS = 4
_WARPS = 8
_STAGES = tl.constexpr(3)
"""Rows of a backward pass on their way at a time."""
_SUM_TILE = 8192
"""Values that a program adds at a time."""


@triton.jit
def _load_row(pointer, row, rows, width: tl.constexpr, block: tl.constexpr):
    """Values float32 [block] of a row; zeros behind its end and behind the last row."""
    column = tl.arange(0, block)
    place = pointer + row.to(tl.int64) * width + column
    return tl.load(place, mask=(column < width) & (row < rows), other=0.0).to(tl.float32)


@triton.jit
def _store_row(pointer, row, rows, values, width: tl.constexpr, block: tl.constexpr):
    column = tl.arange(0, block)
    place = pointer + row.to(tl.int64) * width + column
    mask = (column < width) & (row < rows)
    tl.store(place, values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _pairs(values, block: tl.constexpr):
    """Even and odd values of a row, [block / 2] each: (2i, 2i + 1) turn together."""
    return tl.split(tl.reshape(values, [block // 2, 2]))


@triton.jit
def _turn(cos, sin, token, head: tl.constexpr, block: tl.constexpr):
    """Cosine and sine of a token's pairs: the tables have (c, c) and (−s, s) for each."""
    place = token * head + 2 * (tl.arange(0, block // 2) % (head // 2))
    return tl.load(cos + place), tl.load(sin + place + 1)


@triton.jit
def _norm_rope_forward(
    x, weight, cos, sin, out, rows, tokens, eps,
    each: tl.constexpr, head: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    scales = _load_row(weight, program * 0, 1, width, block)
    for index in range(each):
        row = program * each + index
        values = _load_row(x, row, rows, width, block)
        values = values * tl.rsqrt(tl.sum(values * values, 0) / width + eps) * scales
        even, odd = _pairs(values, block)
        c, s = _turn(cos, sin, row % tokens, head, block)
        turned = tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), [block])
        _store_row(out, row, rows, turned, width, block)


@triton.jit
def _norm_rope_backward(
    grad, x, weight, cos, sin, grad_x, shares, rows, tokens, eps,
    each: tl.constexpr, head: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    scales = _load_row(weight, program * 0, 1, width, block)
    summed = tl.zeros([block], tl.float32)
    for index in tl.range(each, num_stages=_STAGES):
        row = program * each + index
        even, odd = _pairs(_load_row(grad, row, rows, width, block), block)
        c, s = _turn(cos, sin, row % tokens, head, block)
        turned = tl.reshape(tl.join(even * c + odd * s, odd * c - even * s), [block])
        values = _load_row(x, row, rows, width, block)
        scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
        values = values * scale
        summed += turned * values
        turned = turned * scales
        along = tl.sum(turned * values, 0) / width
        _store_row(grad_x, row, rows, (turned - values * along) * scale, width, block)
    _store_row(shares, program, program + 1, summed, width, block)


@triton.jit
def _centred(values, eps, width: tl.constexpr, block: tl.constexpr):
    """Layer norm of a row, and 1 / its standard deviation; zeros behind its end."""
    mean = tl.sum(values, 0) / width
    values = tl.where(tl.arange(0, block) < width, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    return values * scale, scale


@triton.jit
def _norm_modulate_forward(
    x, shift, scale, out, tokens, eps, stride, base,
    each: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (part of a frame's tokens, frame)."""
    frame = tl.program_id(1)
    column = tl.arange(0, block)
    place = frame.to(tl.int64) * stride + column
    factor = base + tl.load(scale + place, mask=column < width, other=0.0)
    added = tl.load(shift + place, mask=column < width, other=0.0)
    last = (frame + 1) * tokens
    for index in range(each):
        row = frame * tokens + tl.program_id(0) * each + index
        values, _ = _centred(_load_row(x, row, last, width, block), eps, width, block)
        _store_row(out, row, last, values * factor + added, width, block)


@triton.jit
def _norm_modulate_backward(
    grad, x, scale, grad_x, shift_shares, scale_shares, tokens, eps, stride, base,
    each: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Programs (part of a frame's tokens, frame)."""
    part, frame = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, block)
    place = frame.to(tl.int64) * stride + column
    factor = base + tl.load(scale + place, mask=column < width, other=0.0)
    shift_sum = tl.zeros([block], tl.float32)
    scale_sum = tl.zeros([block], tl.float32)
    last = (frame + 1) * tokens
    for index in tl.range(each, num_stages=_STAGES):
        row = frame * tokens + part * each + index
        values, deviation = _centred(_load_row(x, row, last, width, block), eps, width, block)
        given = _load_row(grad, row, last, width, block)
        shift_sum += given
        scale_sum += given * values
        given = given * factor
        along = tl.sum(given * values, 0) / width
        given = (given - tl.sum(given, 0) / width - values * along) * deviation
        _store_row(grad_x, row, last, given, width, block)
    share = frame * tl.num_programs(0) + part
    _store_row(shift_shares, share, share + 1, shift_sum, width, block)
    _store_row(scale_shares, share, share + 1, scale_sum, width, block)


@triton.jit
def _sum_shares(shares, out, parts, width, rows: tl.constexpr, columns: tl.constexpr):
    """Programs (columns, group)."""
    group = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, rows)[:, None]
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    place = (group * parts + part) * width + column[None, :]
    mask = (part < parts) & (column[None, :] < width)
    summed = tl.sum(tl.load(shares + place, mask=mask, other=0.0), 0)
    summed = summed.to(out.dtype.element_ty)
    tl.store(out + group * width + column, summed, mask=column < width)


def norm_rope_forward(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, out: Tensor
) -> None:
    """Write the normed and rotated rows of `x` [B, N, D] to `out`."""
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    _norm_rope_forward[(triton.cdiv(rows, _FORWARD_ROWS),)](
        x, weight, cos, sin, out, rows, x.shape[1], eps,
        each=_FORWARD_ROWS, head=cos.shape[-1], width=width,
        block=triton.next_power_of_2(width), num_warps=_WARPS,
    )  # fmt: skip


def norm_rope_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    grad_x: Tensor,
    shares: Tensor,
    each: int,
) -> None:
    """Write the gradient of `x`, and shares [programs, D] of the weight's, of `each` rows each."""
    width, rows = x.shape[-1], x.numel() // x.shape[-1]
    _norm_rope_backward[(len(shares),)](
        grad, x, weight, cos, sin, grad_x, shares, rows, x.shape[1], eps,
        each=each, head=cos.shape[-1], width=width,
        block=triton.next_power_of_2(width), num_warps=_WARPS,
    )  # fmt: skip


def norm_modulate_forward(
    x: Tensor, shift: Tensor, scale: Tensor, stride: int, base: float, eps: float, out: Tensor
) -> None:
    """Write norm(x)·(base + scale) + shift of `x` [B, F·S, D] to `out`.

    `stride` elements lie between two frames' rows of `shift` and `scale`.
    """
    frames, tokens = _frames(x, shift)
    _norm_modulate_forward[(triton.cdiv(tokens, _FORWARD_ROWS), frames)](
        x, shift, scale, out, tokens, eps, stride, base,
        each=_FORWARD_ROWS, width=x.shape[-1],
        block=triton.next_power_of_2(x.shape[-1]), num_warps=_WARPS,
    )  # fmt: skip


def norm_modulate_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    stride: int,
    base: float,
    eps: float,
    grad_x: Tensor,
    shift_shares: Tensor,
    scale_shares: Tensor,
    each: int,
) -> None:
    """Write the gradient of `x`, and shares [frames, parts, D] of the modulation's."""
    frames, tokens = _frames(x, scale)
    _norm_modulate_backward[(shift_shares.shape[1], frames)](
        grad, x, scale, grad_x, shift_shares, scale_shares, tokens, eps, stride, base,
        each=each, width=x.shape[-1],
        block=triton.next_power_of_2(x.shape[-1]), num_warps=_WARPS,
    )  # fmt: skip


def sum_shares(shares: Tensor, out: Tensor) -> None:
    """Write the sums over parts of `shares` [groups, parts, D] to `out` [groups, D]."""
    groups, parts, width = shares.shape
    rows = triton.next_power_of_2(parts)
    columns = max(16, _SUM_TILE // rows)
    _sum_shares[(triton.cdiv(width, columns), groups)](
        shares, out, parts, width, rows=rows, columns=columns, num_warps=_WARPS
    )


def _frames(x: Tensor, by_frame: Tensor) -> tuple[int, int]:
    """Frames of all samples together, and tokens of each."""
    frames = by_frame.shape[0] * by_frame.shape[1]
    return frames, x.shape[0] * x.shape[1] // frames
