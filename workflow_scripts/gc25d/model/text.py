"""Prompts as keys of cross-attention, without the 512-row padding.

Wan attends to a prompt's zero padding. All padded rows have one key and one value, so a prompt of
n tokens in L rows equals n keys plus one padding key whose logit gains log(L − n).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from gc25d.dataset.actions import ActionWindows
from gc25d.errors import UserError

_ROWS_MULTIPLE = 16  # key counts are rounded up: few shapes to compile, aligned kernels
_PADDING_KEYS = 2


class _SelectRows(Function):
    """Rows of a matrix [P, M] by number [N] → [N, M].

    Unlike that of indexing, the gradient is summed in a fixed order on every device: it is a
    product with the choice as a one-hot matrix.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.count = rows.shape[0]
        return rows.index_select(0, chosen)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (chosen,) = ctx.saved_tensors
        numbers = torch.arange(ctx.count, device=chosen.device)
        one_hot = (chosen[:, None] == numbers).to(grads[0].dtype)
        return one_hot.t() @ grads[0], None


class TextContext(NamedTuple):
    """What every block's cross-attention reads; R keys stand for L rows."""

    tokens: Tensor
    """Projected prompts [P, R, D]."""
    frames: int
    """Latent frames of all samples together, B·F."""
    chosen: Tensor | None
    """The prompt of each frame, int64 [B·F]; None where prompt i is frame i's."""
    bias: Tensor | None
    """Added to the logits of each frame's keys [B·F, R]; None adds nothing."""
    actions: ActionWindows | None = None
    """What action modules read; None for models without them."""

    def of_frames(self, prompts: Tensor) -> Tensor:
        """Each frame's share of a tensor by prompt: [P, R, D] → [B·F, R, D]."""
        if self.chosen is None:
            return prompts
        selected: Tensor = _SelectRows.apply(prompts.flatten(1), self.chosen)  # type: ignore[no-untyped-call]
        return selected.reshape(-1, *prompts.shape[1:])


def cut_prompts(prompts: Tensor, lengths: Tensor) -> Tensor:
    """Drop the padding rows that the bias replaces: [P, L, text_dim] → [P, R, text_dim].

    Lengths on the CPU give the smallest R. Lengths on another device are not read, as that would
    wait for it: all rows are kept.

    Raises:
        UserError: a prompt is longer than its rows.
    """
    rows = prompts.shape[1]
    if lengths.device.type != "cpu":
        return prompts
    longest = int(lengths.max())
    if longest > rows:
        raise UserError(f"a prompt has {longest} tokens but {rows} rows: rebuild the text table")
    return prompts[:, : _aligned(longest + _PADDING_KEYS)]


def padding_bias(lengths: Tensor, rows: int, text_len: int, dtype: torch.dtype) -> Tensor:
    """Logit bias [P, rows] that makes the first padding rows weigh as much as all L − n.

    The multiplicity is spread over two rows: exp(bias) of the first falls short of L − n by its
    rounding, the second carries the rest. With a single row, bfloat16 would be off by up to 1.6 %.
    Rows after them get −∞, the n real rows 0.
    """
    count = (text_len - lengths).double()
    # Scaled down so that rounding to bfloat16 (relative error ≤ 2⁻⁹) never exceeds log(count).
    first = (count.log() * (1 - 2**-8)).to(dtype)
    rest = (count - first.double().exp()).clamp_min(0).log().to(dtype)
    offset = torch.arange(rows, device=lengths.device) - lengths[:, None]
    bias = torch.full(offset.shape, -torch.inf, dtype=dtype, device=lengths.device)
    bias = torch.where(offset == 1, rest[:, None], bias)
    bias = torch.where(offset == 0, first[:, None], bias)
    return bias.masked_fill(offset < 0, 0.0)


def text_context(
    tokens: Tensor, lengths: Tensor, context_ids: Tensor, text_len: int
) -> TextContext:
    """Join projected prompts [P, R, D] with each frame's choice `context_ids` [B, F].

    Where there are no fewer prompts than frames, nothing is shared: the frames' prompts are picked
    once, here, instead of in every block.
    """
    chosen = context_ids.to(tokens.device, non_blocking=True).flatten()
    context = TextContext(tokens, chosen.numel(), chosen, None)
    if not _all_full(lengths, text_len):
        # Where the lengths are: on the CPU these small sums do not keep a GPU waiting.
        bias = padding_bias(lengths, tokens.shape[1], text_len, tokens.dtype)
        context = context._replace(bias=bias.to(tokens.device, non_blocking=True)[chosen])
    if tokens.shape[0] >= context.frames:
        context = context._replace(tokens=context.of_frames(tokens), chosen=None)
    return context


def _all_full(lengths: Tensor, text_len: int) -> bool:
    """Whether no prompt has padding; lengths on a device are not read: that would wait for it."""
    return lengths.device.type == "cpu" and int(lengths.min()) == text_len


def _aligned(count: int) -> int:
    return -(-count // _ROWS_MULTIPLE) * _ROWS_MULTIPLE
