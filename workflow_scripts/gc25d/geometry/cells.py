"""Cells of 4×4 pixels: the mask hides semantic ids by cells, the model counts them by cells."""

import functools

import numpy as np
from jaxtyping import Bool, UInt8

CELL = 4
"""Pixels a side."""


def count_by_cell(
    pixels: Bool[np.ndarray, "*T H W"],
) -> UInt8[np.ndarray, "*T rows columns"]:
    """How many of each cell's 16 pixels are True; H and W are multiples of 4.

    Adds every fourth row, then every fourth column: `sum` over the axes of [rows, 4, columns, 4]
    takes five times as long (0.6 s in place of 0.13 for the classes of 81×480×832 ids).
    """
    ones = pixels.view(np.uint8)
    rows = functools.reduce(np.add, (ones[..., first::CELL, :] for first in range(CELL)))
    return functools.reduce(np.add, (rows[..., first::CELL] for first in range(CELL)))
