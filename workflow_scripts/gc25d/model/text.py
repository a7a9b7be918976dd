"""Prompts as keys of cross-attention, without the 512-row padding.

Wan attends to a prompt's zero padding. All padded rows have one key and one value, so a prompt of
n tokens in L rows equals n keys plus one padding key whose logit gains log(L − n).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gc25d.errors import UserError

_ROWS_MULTIPLE = 16  # key counts are rounded up: few shapes to compile, aligned kernels
_PADDING_KEYS = 2


class TextContext(NamedTuple):
    """What every block's cross-attention reads; R keys stand for L rows."""

    tokens: Tensor
    """Projected prompts [P, R, D]."""
    selection: Tensor
    """One-hot [B·F, P]: the prompt of each frame."""
    bias: Tensor
    """Added to the logits of each frame's keys [B·F, R]."""

    def of_frames(self, prompts: Tensor) -> Tensor:
        """Each frame's share of a tensor by prompt: [P, R, D] → [B·F, R, D].

        A one-hot product copies exactly, and its gradient, unlike that of indexing, is summed in
        a fixed order on every device.
        """
        return (self.selection @ prompts.flatten(1)).reshape(-1, *prompts.shape[1:])


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
    needed = -(-(longest + _PADDING_KEYS) // _ROWS_MULTIPLE) * _ROWS_MULTIPLE
    return prompts[:, :needed]


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
    """Join projected prompts [P, R, D] with each frame's choice `context_ids` [B, F]."""
    lengths = lengths.to(tokens.device, non_blocking=True)
    prompts = torch.arange(tokens.shape[0], device=tokens.device)
    chosen = context_ids.to(tokens.device, non_blocking=True).flatten()
    bias = padding_bias(lengths, tokens.shape[1], text_len, tokens.dtype)
    selection = (chosen[:, None] == prompts).to(tokens.dtype)
    return TextContext(tokens, selection, bias[chosen])
