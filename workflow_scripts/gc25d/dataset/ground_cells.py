"""The ground as the 4×4-pixel cells of a clip see it, as linear forms in the pixel.

`geometry.ground.ground_matrix` gives x·q, y·q, q and depth of a pixel's ground point as linear
functions of the pixel. Where there is such a point q is positive, so "beyond a line of the ground"
is the sign of one more linear function: a comparison per cell, without any unprojection.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64

from gc25d.geometry.cells import CELL
from gc25d.geometry.ground import ground_matrix
from gc25d.shapes import WorldToClip

CENTRE = 2
"""A cell is sampled at its pixel (row 2, column 2)."""


Box: TypeAlias = tuple[slice, slice]
"""Rows and columns of cells."""


@dataclass(frozen=True)
class Line:
    """The ground beyond nx·x + ny·y = offset, cm."""

    normal: tuple[float, float]
    offset: float


@dataclass(frozen=True)
class GroundCells:
    """What T frames of rows × columns cells see of one ground plane."""

    matrix: Float64[np.ndarray, "T 3 4"]
    """`ground_matrix` of each frame."""
    u: Float64[np.ndarray, " columns"]
    v: Float64[np.ndarray, " rows"]

    @classmethod
    def seen(cls, world_to_clip: WorldToClip, plane_z: float, height: int, width: int) -> Self:
        """The cells of frames of `height` × `width` pixels over the plane Z = `plane_z` (cm)."""
        return cls(
            ground_matrix(world_to_clip, plane_z, width, height),
            np.arange(CENTRE, width, CELL) + 0.5,
            np.arange(CENTRE, height, CELL) + 0.5,
        )

    def missing(self) -> Bool[np.ndarray, "T rows columns"]:
        """Where a cell's ray meets no ground before the camera (sky)."""
        behind = self._exceeds(self.matrix[:, :, 2], 0)
        np.logical_not(behind, out=behind)
        behind |= self._exceeds(self.matrix[:, :, 3], 1)
        return behind

    def beyond(self, line: Line) -> Bool[np.ndarray, "T rows columns"]:
        """Where the ground point lies beyond `line`, for cells that have one."""
        return self._exceeds(self.matrix @ _form(line), 0)

    def projections(
        self, frame: int, normal: tuple[float, float], cells: Bool[np.ndarray, "rows columns"]
    ) -> Float64[np.ndarray, " N"]:
        """nx·x + ny·y of the ground points (cm) of `cells`, which must have one."""
        along = self._values(self.matrix[frame] @ _form(Line(normal, 0.0)))[cells]
        return np.asarray(along / self._values(self.matrix[frame, :, 2])[cells])

    def past_lines(self, frame: int, lines: Sequence[Line], box: Box) -> Float64[np.ndarray, "R C"]:
        """How far (cm) the ground points of `box` lie past the line that they are furthest past.

        Cells without a ground point hold anything, NaN included.
        """
        height = self._values(self.matrix[frame, :, 2], box)
        past = []
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for line in lines:
                along = self._values(self.matrix[frame] @ _form(Line(line.normal, 0.0)), box)
                along /= height
                along -= line.offset
                past.append(along)
        return functools.reduce(np.maximum, past)

    def above_horizon(self, frame: int, box: Box) -> Float64[np.ndarray, "R C"]:
        """A measure of the height above the horizon (negative below it) of the cells of `box`."""
        return -self._values(self.matrix[frame, :, 2], box)

    def _values(self, form: np.ndarray, box: Box = (slice(None), slice(None))) -> np.ndarray:
        """A linear function of the pixel, [3], at the cells of `box`."""
        rows, columns = box
        return np.asarray(form[0] * self.u[columns] + (form[1] * self.v[rows] + form[2])[:, None])

    def _exceeds(self, forms: np.ndarray, bound: float) -> np.ndarray:
        """Where each frame's linear function of the pixel, [T, 3], is above `bound`."""
        across = forms[:, 0:1] * self.u
        down = forms[:, 1:2] * self.v + forms[:, 2:3]
        if (
            across.max(axis=1) + down.max(axis=1) <= bound
        ).all():  # nowhere, as is usual for the depth
            return np.zeros((len(forms), len(self.v), len(self.u)), dtype=bool)
        return np.asarray(np.greater(across[:, None, :], (bound - down)[:, :, None]))


def _form(line: Line) -> np.ndarray:
    """(x·q, y·q, q, depth) → q · (nx·x + ny·y − offset)."""
    return np.array([*line.normal, -line.offset, 0.0])
