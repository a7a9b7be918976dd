"""The semantic condition: per-pixel class ids → class occupancy of cells → one vector a token."""

import functools
from typing import NoReturn, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from gc25d.errors import UserError
from gc25d.geometry.cells import CELL, count_by_cell
from gc25d.model.config import CELLS_PER_TOKEN, TOKEN_CELLS, TOKEN_FRAMES, Vocab
from gc25d.shapes import SemIds

Lut: TypeAlias = tuple[int, ...]

UNKNOWN_ID = 255
_CACHED_PIXELS = 2**18
OUTSIDE = 255  # class_lut's mark for an id that the vocabulary does not have

_STATIC = [(identifier,) for identifier in range(7)]
_PLAYER, _BOSS = tuple(range(10, 16)), tuple(range(16, 22))
# The ids of each class, in class order. `ids` takes the stencil's player and boss (7, 8) as well
# as their parts.
_CLASSES: dict[Vocab, list[tuple[int, ...]]] = {
    "parts": [*_STATIC, *((part,) for part in _PLAYER + _BOSS), (UNKNOWN_ID,)],
    "ids": [*_STATIC, (7, *_PLAYER), (8, *_BOSS), (UNKNOWN_ID,)],
}


def class_count(vocab: Vocab) -> int:
    """Semantic classes K, unknown included: 20 for `parts`, 10 for `ids`."""
    return len(_CLASSES[vocab])


@functools.cache
def class_lut(vocab: Vocab) -> Lut:
    """Class index of each of the 256 ids; `OUTSIDE` where the vocabulary has none."""
    lut = [OUTSIDE] * 256
    for index, identifiers in enumerate(_CLASSES[vocab]):
        for identifier in identifiers:
            lut[identifier] = index
    return tuple(lut)


def video_frames(first: int, count: int) -> slice:
    """The video frames of `count` latent frames from `first` on: one of frame 0, four of others."""
    start, stop = (max(0, TOKEN_FRAMES * (cell - 1) + 1) for cell in (first, first + count))
    return slice(start, stop)


def cell_occupancy(
    sem_ids: Tensor, lut: Lut, classes: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Fraction of each 4×4-pixel cell that each class covers, gathered by token.

    Args:
        sem_ids: uint8 [B, T, H, W], H and W multiples of 32. T = 4n + 1 is a clip's beginning,
            with its lone first frame; T = 4n are later frames, in groups of four.
        lut: class of each id (`class_lut`).
        classes: K.
        dtype: of the result; sixteenths are exact in all floating-point types.

    Returns:
        [B, N, 4·8·8·K] in the order (frame, row, column, class). A lone first frame fills the
        four frames of its tokens.

    Raises:
        UserError: an id outside the vocabulary (checked on the CPU only, where it is cheap).
    """
    batch, frames, height, width = sem_ids.shape
    counts = _cell_counts(sem_ids.contiguous().flatten(0, 1), lut, classes)
    counts = counts.view(batch, frames, *counts.shape[1:])
    copies = counts[:, :1].expand(-1, -frames % TOKEN_FRAMES, -1, -1, -1)
    cells = torch.cat([copies, counts], dim=1)
    rows, columns = height // (CELL * TOKEN_CELLS), width // (CELL * TOKEN_CELLS)
    split = (batch, -1, TOKEN_FRAMES, rows, TOKEN_CELLS, columns, TOKEN_CELLS, classes)
    tokens = cells.view(split).permute(0, 1, 3, 5, 2, 4, 6, 7)
    return tokens.reshape(batch, -1, CELLS_PER_TOKEN * classes).to(dtype).mul_(1 / CELL**2)


def _cell_counts(frames: Tensor, lut: Lut, classes: int) -> Tensor:
    """Pixels of each class in each cell: uint8 [T, H, W] → uint8 [T, H/4, W/4, K]."""
    if frames.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.from_numpy(count_cells_numpy(frames.numpy(), lut, classes))
    return count_cells_torch(frames, lut, classes)


def count_cells_torch(frames: Tensor, lut: Lut, classes: int) -> Tensor:
    """Cell counts on an accelerator, one kernel once compiled; ids outside `lut` count nowhere."""
    total, height, width = frames.shape
    split = (total, height // CELL, CELL, width // CELL, CELL)
    counts = []
    for identifiers in _identifiers(lut, classes):
        hits = frames == identifiers[0]
        for identifier in identifiers[1:]:
            hits = hits | (frames == identifier)
        counts.append(hits.view(split).sum((2, 4), dtype=torch.uint8))
    return torch.stack(counts, dim=-1)


def count_cells_numpy(frames: SemIds, lut: Lut, classes: int) -> UInt8[np.ndarray, "T h w K"]:
    """Cell counts on the CPU, in pieces that stay in its cache.

    Raises:
        UserError: an id outside `lut`.
    """
    total, height, width = frames.shape
    counts = np.zeros((total, height // CELL, width // CELL, classes), dtype=np.uint8)
    step = max(1, _CACHED_PIXELS // (height * width))
    for start in range(0, total, step):
        piece = slice(start, start + step)
        _count_piece(frames[piece], counts[piece], lut)
    return counts


def _count_piece(frames: SemIds, counts: UInt8[np.ndarray, "T h w K"], lut: Lut) -> None:
    """Write the counts of the classes that `frames` show."""
    seen = 0
    for index, identifiers in enumerate(_identifiers(lut, counts.shape[-1])):
        hits = frames == identifiers[0]
        for identifier in identifiers[1:]:
            hits |= frames == identifier
        pixels = int(np.count_nonzero(hits))
        if pixels:
            seen += pixels
            counts[..., index] = count_by_cell(hits)
    if seen != frames.size:
        _refuse_unknown(frames, lut)


def _identifiers(lut: Lut, classes: int) -> list[list[int]]:
    """The ids of each class."""
    groups: list[list[int]] = [[] for _ in range(classes)]
    for identifier, index in enumerate(lut):
        if index != OUTSIDE:
            groups[index].append(identifier)
    return groups


def _refuse_unknown(frames: SemIds, lut: Lut) -> NoReturn:
    known = [identifier for identifier in range(256) if lut[identifier] != OUTSIDE]
    unknown = np.setdiff1d(frames, known).tolist()
    raise UserError(
        f"semantic ids {unknown} are outside the model's vocabulary {known}: "
        "rebuild the data, or choose the vocabulary it was made for"
    )


class SemanticCondition(nn.Module):
    """Occupancy → proj_in → SiLU → proj_mid → SiLU → proj_out, whose zero start changes nothing."""

    def __init__(self, vocab: Vocab, cond_dim: int, dim: int) -> None:
        super().__init__()
        self.classes = class_count(vocab)
        self.lut = class_lut(vocab)
        self.proj_in = nn.Linear(CELLS_PER_TOKEN * self.classes, cond_dim)
        self.proj_mid = nn.Linear(cond_dim, cond_dim)
        self.proj_out = nn.Linear(cond_dim, dim)

    def forward(self, sem_ids: Tensor) -> Tensor:
        """Uint8 [B, T, H, W] → [B, N, dim]."""
        occupancy = cell_occupancy(sem_ids, self.lut, self.classes, self.proj_in.weight.dtype)
        hidden = nn.functional.silu(self.proj_in(occupancy))
        hidden = nn.functional.silu(self.proj_mid(hidden))
        return cast(Tensor, self.proj_out(hidden))
