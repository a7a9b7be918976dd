"""What a clip's geometry says, drawn into its frames: the ground's grid, outlines, ids, mask.

A camera, a ground height or a skeleton that is wrong shows at a glance: the grid swims, or outlines
and coloured parts slide off the characters. Pure functions; small frames stay small.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, UInt8
from PIL import Image, ImageDraw

from gc25d.evaluate.overlays import ALPHA, LabelledClip, overlay_figure
from gc25d.evaluate.panels import PANEL_HEIGHT, beside, enlarge, header_strip
from gc25d.geometry.camera import pixel_centers
from gc25d.geometry.ground import ground_points
from gc25d.geometry.outlines import capsule_outline
from gc25d.prep.overlay import legend, overlay
from gc25d.shapes import RgbFrames, SemIds, WorldToClip

METRE = 100.0
"""Centimetres."""
SPACINGS = (METRE, 10 * METRE)
"""Distances of the grid's lines, cm: thin ones, and strong ones."""
GRID_ALPHAS = (0.45, 0.9)
GRID_COLOUR = (255, 255, 255)
SMALLEST_CELL = 5.0
"""Pixels between two lines below which they are left out: they would cover the ground."""

_HERE = (slice(None, -1), slice(None, -1))
_RIGHT = (slice(None, -1), slice(1, None))
_BELOW = (slice(1, None), slice(None, -1))


@dataclass(frozen=True)
class Inspected:
    """A stretch of a run or a clip, all at one size [T, H, W]."""

    title: str
    frames: RgbFrames
    sem_ids: SemIds
    """With the mask, if one was drawn."""
    cameras: WorldToClip
    capsules: Float64[np.ndarray, "T N 7"]
    part: UInt8[np.ndarray, " N"]
    ground_z: float | None


def grid_lines(
    camera: Float64[np.ndarray, "4 4"], ground_z: float, width: int, height: int, spacing: float
) -> Bool[np.ndarray, "H W"]:
    """Pixels on which a grid line X or Y = k · `spacing` (cm) of the plane Z = `ground_z` falls.

    A pixel is on a line when its right or lower neighbour sees another square of the grid. Where
    squares are smaller than `SMALLEST_CELL` pixels, and in the sky, there is none.
    """
    points, seen = ground_points(
        camera, pixel_centers(width + 1, height + 1), ground_z, width, height
    )
    squares = np.floor(points / spacing)
    lines = np.zeros((height, width), np.bool_)
    drawn = seen[:-1, :-1]
    for there in (_RIGHT, _BELOW):
        crossed = (squares[there] != squares[_HERE]).any(axis=-1)
        step = np.abs(points[there] - points[_HERE]).max(axis=-1)
        lines |= crossed & seen[there]
        drawn = drawn & (step * SMALLEST_CELL < spacing)
    return np.asarray(lines & drawn)


def draw_grid(
    frame: UInt8[np.ndarray, "H W 3"], camera: Float64[np.ndarray, "4 4"], ground_z: float
) -> UInt8[np.ndarray, "H W 3"]:
    """The frame with the ground's lines: faint ones each metre, strong ones each ten."""
    height, width, _ = frame.shape
    drawn = frame.astype(np.float64)
    for spacing, alpha in zip(SPACINGS, GRID_ALPHAS, strict=True):
        lines = grid_lines(camera, ground_z, width, height, spacing)
        drawn[lines] = frame[lines] * (1 - alpha) + np.multiply(GRID_COLOUR, alpha)
    return np.rint(drawn).astype(np.uint8)


def draw_capsules(
    frame: UInt8[np.ndarray, "H W 3"],
    camera: Float64[np.ndarray, "4 4"],
    capsules: Float64[np.ndarray, "N 7"],
    part: UInt8[np.ndarray, " N"],
) -> UInt8[np.ndarray, "H W 3"]:
    """The frame with each capsule's outline in the colour of its part."""
    height, width, _ = frame.shape
    image = Image.fromarray(frame)
    pen = ImageDraw.Draw(image)
    colours = {number: colour for _, number, colour in legend()}
    for capsule, number in zip(np.asarray(capsules, np.float64), part.tolist(), strict=True):
        outline = capsule_outline(capsule, camera, width, height)
        if outline is not None:
            # Pillow's integer coordinates are pixels' places, ours the corners between them.
            corners = np.clip(outline - 0.5, -4 * width, 4 * width)
            pen.polygon([(u, v) for u, v in corners.tolist()], outline=colours[number])
    return np.asarray(image)


def draw_frames(inspected: Inspected) -> RgbFrames:
    """All frames with grid and outlines, uint8 [T, H, W, 3]."""
    return np.stack(list(_drawn(inspected)))


def _drawn(inspected: Inspected) -> Iterator[np.ndarray]:
    for frame, camera, posed in zip(
        inspected.frames, inspected.cameras, inspected.capsules, strict=True
    ):
        ground_z = inspected.ground_z
        gridded = frame if ground_z is None else draw_grid(frame, camera, ground_z)
        yield draw_capsules(gridded, camera, posed, inspected.part)


def inspection_video(inspected: Inspected) -> RgbFrames:
    """Geometry | ids, uint8 [T, H', W', 3], under a line of labels."""
    factor = max(1, -(-PANEL_HEIGHT // inspected.frames.shape[1]))
    views = [
        enlarge(view, factor)
        for view in (draw_frames(inspected), overlay(inspected.frames, inspected.sem_ids, ALPHA))
    ]
    header = header_strip((inspected.title, "ids"), views[0].shape[2])
    return np.stack([np.concatenate([header, beside(pair)]) for pair in zip(*views, strict=True)])


def inspection_sheet(inspected: Inspected) -> UInt8[np.ndarray, "H W 3"]:
    """A few frames: geometry above, ids over it below, and the legend."""
    clip = LabelledClip(inspected.title, draw_frames(inspected), inspected.sem_ids)
    return overlay_figure([clip])
