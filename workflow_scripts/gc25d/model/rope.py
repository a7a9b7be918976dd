"""Rotary position embedding over (frame, row, column), in real arithmetic.

Wan rotates the complex numbers x[2i] + i·x[2i+1] of a head by exp(i · position · θ^(−2i/m)); the
pairs of a head are split over the three axes. Written out in reals, a compiler can fuse it.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

THETA = 10000.0


class RopeTable(NamedTuple):
    """Every token's cos and ±sin for each component of a head, float32 [N, 1, d] each.

    The sine is negative at even components: (a, b) turns into (a·cos − b·sin, b·cos + a·sin).
    """

    cos: Tensor
    sin: Tensor


def split_head(head_dim: int) -> tuple[int, int, int]:
    """Components of a head that encode frame, row and column: d − 4⌊d/6⌋, 2⌊d/6⌋, 2⌊d/6⌋."""
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


@functools.lru_cache(maxsize=32)  # of a few grids, made anew for every micro-batch otherwise
@torch.inference_mode(mode=False)  # whoever asks first: training too may keep it for its gradients
def rope_table(
    grid: tuple[int, int, int], head_dim: int, device: torch.device, first_frame: int = 0
) -> RopeTable:
    """Angles of the tokens of a (frames, rows, columns) grid in token order, from float64.

    The grid's frames have the positions `first_frame`, `first_frame` + 1, …
    """
    angles = []
    firsts = (first_frame, 0, 0)
    for axis, (size, width) in enumerate(zip(grid, split_head(head_dim), strict=True)):
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
        positions = torch.arange(size, dtype=torch.float64, device=device) + firsts[axis]
        shape = [1, 1, 1, width // 2]
        shape[axis] = size
        table = torch.outer(positions, THETA**-exponents).reshape(shape)
        angles.append(table.expand(*grid, width // 2))
    flat = torch.cat(angles, dim=-1).reshape(-1, 1, head_dim // 2)
    cos, sin = flat.cos(), flat.sin()
    return RopeTable(*(_interleave(*pair).float() for pair in ((cos, cos), (-sin, sin))))


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([even, odd], dim=-1).flatten(-2)


def apply_rope(heads: Tensor, table: RopeTable) -> Tensor:
    """Rotate queries or keys [B, N, heads, d] in float32; returns their dtype."""
    x = heads.float()
    partner = x.reshape(*x.shape[:-1], -1, 2).flip(-1).flatten(-2)
    return torch.addcmul(x * table.cos, partner, table.sin).to(heads.dtype)
