"""The world-anchored UNKNOWN mask: half-planes of the ground whose static ids are hidden."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, UInt8

from gc25d.dataset.ground_cells import Box, GroundCells, Line
from gc25d.dataset.selection import furthest, weighted_quantile
from gc25d.geometry.cells import CELL, count_by_cell
from gc25d.prep.parts import LAST_STATIC, UNKNOWN
from gc25d.shapes import SemIds, WorldToClip

Coverage: TypeAlias = Literal["first_frame", "mean_frame", "capped"]

ONE_PLANE_P = 0.7
QUANTILES = (0.05, 0.40)
CAP = 0.40
"""Largest share of a frame's static pixels that `capped` hides."""
CALIBRATION_STRIDE = 4
"""`mean_frame` calibrates on every 4th frame: one for each latent frame."""


@dataclass(frozen=True)
class HalfPlane:
    """The part of the ground beyond a line."""

    theta: float
    """Direction of the normal in world XY, radians from +X towards +Y."""
    quantile: float
    """Share of the calibration frames' static pixels that lies beyond the line."""

    @property
    def normal(self) -> tuple[float, float]:
        """Unit normal in world XY."""
        return float(np.cos(self.theta)), float(np.sin(self.theta))


def draw_planes(uniforms: Float64[np.ndarray, "5"]) -> tuple[HalfPlane, ...]:
    """Five uniforms in [0, 1) → one half-plane (p 0.7) or two (p 0.3)."""
    low, high = QUANTILES
    planes = [
        HalfPlane(float(2 * np.pi * uniforms[i]), float(low + (high - low) * uniforms[i + 1]))
        for i in (1, 3)
    ]
    return tuple(planes[: 1 if uniforms[0] < ONE_PLANE_P else 2])


def mask_ids(
    sem_ids: SemIds,
    world_to_clip: WorldToClip,
    plane_z: float | None,
    planes: Sequence[HalfPlane],
    coverage: Coverage,
    *,
    out: SemIds | None = None,
) -> tuple[SemIds, float]:
    """Hide static pixels beyond `planes`, or without a ground point, as UNKNOWN.

    Characters (10..21) never change. A cell of 4×4 pixels is hidden as one, by its pixel (2, 2).
    Nothing is hidden without a ground plane, without planes, or when no static pixel of the
    calibration frames shows the ground.

    Args:
        sem_ids: uint8 [T, H, W], sides multiples of 4.
        world_to_clip: float64 [T, 4, 4], row vectors, at the resolution of `sem_ids`.
        plane_z: height of the ground, cm; None when the run has none.
        planes: what to hide; see `draw_planes`.
        coverage: `first_frame` calibrates each line on the static pixels of frame 0, `mean_frame`
            on those of the whole clip, `capped` as `first_frame` and then moves a frame's lines
            outwards together, and sky likewise, until at most 40 % of its static pixels are hidden.
        out: where to write the result; may be `sem_ids` itself.

    Returns:
        The masked ids and the share of all pixels that was hidden.
    """
    if out is None:
        out = sem_ids.copy()
    elif out is not sem_ids:
        out[...] = sem_ids
    if plane_z is None or not planes:
        return out, 0.0
    cells = GroundCells.seen(world_to_clip, plane_z, *sem_ids.shape[1:])
    missing = cells.missing()
    frames = range(0, len(sem_ids), CALIBRATION_STRIDE) if coverage == "mean_frame" else (0,)
    lines = _calibrate(cells, missing, sem_ids, planes, frames)
    if not lines:
        return out, 0.0
    cap = CAP if coverage == "capped" else 1.0
    return out, _hide(cells, missing, lines, cap, out) / out.size


def _calibrate(
    cells: GroundCells,
    missing: Bool[np.ndarray, "T rows columns"],
    sem_ids: SemIds,
    planes: Sequence[HalfPlane],
    frames: Sequence[int],
) -> list[Line]:
    """Each plane's line: the (1 − q) quantile of the static pixels of `frames` over the ground.

    A cell's ground point counts as often as the cell has static pixels. No line at all when there
    is no such pixel.
    """
    counts = {t: count_by_cell(sem_ids[t] <= LAST_STATIC) * ~missing[t] for t in frames}
    seen = {t: found > 0 for t, found in counts.items()}
    weights = np.concatenate([counts[t][chosen] for t, chosen in seen.items()])
    if not weights.size:
        return []
    lines = []
    for plane in planes:
        along = [cells.projections(t, plane.normal, chosen) for t, chosen in seen.items()]
        offset = weighted_quantile(np.concatenate(along), weights, 1 - plane.quantile)
        lines.append(Line(plane.normal, offset))
    return lines


def _hide(
    cells: GroundCells,
    missing: Bool[np.ndarray, "T rows columns"],
    lines: Sequence[Line],
    cap: float,
    sem_ids: SemIds,
) -> int:
    """Hide in place, frame by frame for the processor's cache; returns how many pixels."""
    beyond = missing.copy()
    for line in lines:
        beyond |= cells.beyond(line)
    hidden = 0
    for t in np.flatnonzero(beyond.any(axis=(1, 2))):
        static = sem_ids[t] <= LAST_STATIC
        chosen = beyond[t]
        if cap < 1:
            chosen = _shrunk(cells, int(t), lines, chosen, missing[t], count_by_cell(static), cap)
        hidden += _replace(sem_ids[t], static, chosen)
    return hidden


def _replace(
    ids: UInt8[np.ndarray, "H W"],
    static: Bool[np.ndarray, "H W"],
    cells: Bool[np.ndarray, "rows columns"],
) -> int:
    """Make the `static` pixels of `cells` UNKNOWN in place; returns how many they are.

    Four pixels are replaced at once, as one 32-bit word: a masked clip of 81×480×832 opens in 19 ms
    (`first_frame`), 26 (`mean_frame`) or 42 (`capped`). With a cell's value repeated for each of
    its pixels, which is the best of the plain ways, it takes 17, 13 or 10 % longer.
    """
    if not cells.any():
        return 0
    rows, columns = box = _box(cells)
    pixels = (
        slice(rows.start * CELL, rows.stop * CELL),
        slice(columns.start * CELL, columns.stop * CELL),
    )
    # A cell's row of four pixels is one word of four bytes, 1 where static. UNKNOWN has all bits
    # set: 255 times the word, or-ed in, replaces the ids of its static pixels.
    words = static.view(np.uint32).reshape(len(cells), CELL, -1)[rows, :, columns]
    chosen = words * (cells[box] * np.uint32(UNKNOWN))[:, None]
    replaced = chosen.view(np.uint8).reshape(ids[pixels].shape)
    np.bitwise_or(ids[pixels], replaced, out=ids[pixels])
    return int(np.count_nonzero(replaced))


def _box(cells: Bool[np.ndarray, "rows columns"] | UInt8[np.ndarray, "rows columns"]) -> Box:
    """The rows and columns from the first to the last in which a cell is not 0; there is one."""
    rows, columns = (np.flatnonzero(cells.any(axis=axis)) for axis in (1, 0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _shrunk(
    cells: GroundCells,
    frame: int,
    lines: Sequence[Line],
    beyond: Bool[np.ndarray, "rows columns"],
    missing: Bool[np.ndarray, "rows columns"],
    static: UInt8[np.ndarray, "rows columns"],
    cap: float,
) -> Bool[np.ndarray, "rows columns"]:
    """The cells of `beyond` that stay hidden when at most `cap` of the `static` pixels may.

    Sky and ground give up the same share: of the sky the highest above the horizon stays, of the
    ground the furthest beyond the nearest line. So what is hidden keeps its shape and shrinks.
    """
    weights = static * beyond
    hidden, allowed = _total(weights), cap * _total(static)
    if hidden <= allowed:
        return beyond
    share = allowed / hidden
    sky = weights * missing
    ground = weights - sky
    kept = np.zeros_like(beyond)
    if sky.any():
        box = _box(sky)
        kept[box] = furthest(cells.above_horizon(frame, box), sky[box], share)
    if ground.any():
        box = _box(ground)
        kept[box] |= furthest(cells.past_lines(frame, lines, box), ground[box], share)
    return kept


def _total(weights: UInt8[np.ndarray, "rows columns"]) -> int:
    return int(weights.sum(dtype=np.uint32))
