"""Capsules (two end points and a radius) against rays, and their distance in the picture.

A capsule is a row (x0, y0, z0, x1, y1, z1, radius) in cm. One that holds NaN is absent.

Only pixels near a capsule are tested against it. Bounds with room for rounding show that it cannot
reach the others, so the results are those of testing every pixel against every capsule.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from gc25d.geometry.camera import near_plane_distance, project
from gc25d.geometry.capsule_rays import _dot, ray_distances

Capsules = Float[np.ndarray, "N 7"]
_CORNERS = np.array(list(product((False, True), repeat=3)))  # of a box: its high end by axis?
_IN_FRONT = 1e-6  # smallest clip w (or fraction of the farther end's) that still projects
_TILE = 16  # pixels; on pictures of 480×832, 8 costs 15 % more and 64 costs 7 % more


def _may_start_inside(
    origins: Float64[np.ndarray, "3 P"], capsules: Float64[np.ndarray, "N 7"]
) -> Bool[np.ndarray, " N"]:
    """Whether the box around all origins reaches the one around each capsule."""
    low, high = _box(capsules)
    room = 1e-6 * (1 + np.abs(capsules).max(axis=1, keepdims=True))  # for rounding
    first, last = origins.min(axis=1), origins.max(axis=1)
    return np.asarray(((first <= high + room) & (last >= low - room)).all(axis=1))


def _box(capsules: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner [..., 3] of capsules [..., 7]."""
    start, end, radius = capsules[..., :3], capsules[..., 3:6], capsules[..., 6:]
    return np.minimum(start, end) - radius, np.maximum(start, end) + radius


def first_hits(
    pixels: Float64[np.ndarray, "P 2"],
    capsules: Capsules,
    world_to_clip: Float64[np.ndarray, "4 4"],
    width: int,
    height: int,
) -> Int[np.ndarray, " P"]:
    """Index of the capsule that each pixel's ray hits first; −1 where it hits none.

    Equal distances go to the lower index. Each capsule is tested only against the pixels inside its
    bounding box's outline in the picture.

    Args:
        pixels: continuous coordinates inside the picture, at most one point a pixel.
        capsules: cm.
        world_to_clip: the camera.
        width: of the picture.
        height: of the picture.
    """
    best = np.full(len(pixels), np.inf)
    index = np.full(len(pixels), -1)
    if not len(pixels):
        return index
    origins, directions = _rays(world_to_clip, pixels, width, height)
    present = np.flatnonzero(~np.isnan(capsules).any(axis=1))
    capsules = np.asarray(capsules, np.float64)[present]
    boxes = _outline_boxes(capsules, world_to_clip, width, height)
    may_start_inside = _may_start_inside(origins, capsules)
    for chosen, near in enumerate(_pixels_in(pixels, boxes)):
        rays = origins.take(near, axis=1), directions.take(near, axis=1)
        distance = ray_distances(*rays, capsules[chosen], bool(may_start_inside[chosen]))
        (closer,) = (distance < best.take(near)).nonzero()
        near = near[closer]
        best[near], index[near] = distance[closer], present[chosen]
    return index


def _pixels_in(
    pixels: Float64[np.ndarray, "P 2"], boxes: Int[np.ndarray, "N 4"]
) -> Iterator[Int[np.ndarray, " n"]]:
    """For each box (left, top, right, bottom) the places in `pixels` of those inside it."""
    columns, rows = pixels.astype(np.intp).T
    left, top = columns.min(), rows.min()
    shape = rows.max() - top + 1, columns.max() - left + 1
    place = np.full(shape, -1)  # pixel of the part of the picture that `pixels` cover → its place
    place[rows - top, columns - left] = np.arange(len(pixels))
    for box in boxes - (left, top, left, top):
        from_column, from_row, to_column, to_row = np.maximum(box, 0)
        inside = place[from_row:to_row, from_column:to_column]
        yield inside[inside >= 0]


def _rays(
    world_to_clip: np.ndarray, pixels: np.ndarray, width: int, height: int
) -> tuple[Float64[np.ndarray, "3 P"], Float64[np.ndarray, "3 P"]]:
    """`gc25d.geometry.camera.unproject_rays` for many pixels of one camera, several times as fast.

    With c the homogeneous image of the depth axis, far = near − c, so the direction
    far·near_w − near·far_w is near·c_w − c·near_w.
    """
    inverse = np.linalg.inv(world_to_clip)
    x, y = pixels[:, 0] * (2 / width) - 1, 1 - pixels[:, 1] * (2 / height)
    depth, rest = inverse[2, :, None], (inverse[2] + inverse[3])[:, None]
    near = x * inverse[0, :, None] + y * inverse[1, :, None] + rest
    towards = near[:3] * depth[3] - depth[:3] * near[3]
    return near[:3] / near[3], towards / np.sqrt(_dot(towards, towards))


def _outline_boxes(
    capsules: Float64[np.ndarray, "N 7"], world_to_clip: np.ndarray, width: int, height: int
) -> Int[np.ndarray, "N 4"]:
    """Left, top, right, bottom of the pixels that each capsule's bounding box may cover."""
    low, high = _box(capsules)
    corners = np.where(_CORNERS, high[:, None], low[:, None])
    outlines, _ = project(corners, world_to_clip, width, height)
    size = np.array([width, height])
    # one pixel of room on each side, for rounding; NaN: a part of it lies behind the camera, so it
    # has no outline
    first = np.clip(np.nan_to_num(np.floor(outlines.min(axis=1)) - 1), 0, size)
    last = np.where(np.isnan(outlines).any(axis=1), size, np.floor(outlines.max(axis=1)) + 2)
    return np.concatenate([first, np.clip(last, 0, size)], axis=1).astype(np.intp)


@dataclass(frozen=True)
class _Outlines:
    """Capsules in the picture: projected axes with a radius at each end, pixels."""

    start_x: Float64[np.ndarray, " N"]
    start_y: Float64[np.ndarray, " N"]
    along_x: Float64[np.ndarray, " N"]
    along_y: Float64[np.ndarray, " N"]
    radius: Float64[np.ndarray, " N"]
    growth: Float64[np.ndarray, " N"]
    """Radius at the end less the radius at the start."""

    def distances(self, chosen: Any, x: np.ndarray, y: np.ndarray) -> Float64[np.ndarray, "*shape"]:
        """From pixels to the outlines `chosen`, an index: a number, or slices that broadcast.

        The distance is the one to the axis, less the radius there; negative inside.
        """
        along_x, along_y = self.along_x[chosen], self.along_y[chosen]
        length2 = np.maximum(along_x * along_x + along_y * along_y, 1e-12)
        x, y = x - self.start_x[chosen], y - self.start_y[chosen]
        fraction = x * along_x
        fraction += y * along_y
        fraction /= length2
        np.clip(fraction, 0, 1, out=fraction)
        x -= fraction * along_x
        y -= fraction * along_y
        x *= x
        y *= y
        x += y
        np.sqrt(x, out=x)
        fraction *= self.growth[chosen]
        fraction += self.radius[chosen]
        x -= fraction
        return np.asarray(x)

    @property
    def steepness(self) -> Float64[np.ndarray, " N"]:
        """A distance changes at most so much a pixel (a Lipschitz bound)."""
        length = np.maximum(np.hypot(self.along_x, self.along_y), 1e-6)
        return np.asarray(1 + np.abs(self.growth) / length)


def nearest_in_image(
    pixels: Float64[np.ndarray, "P 2"],
    capsules: Capsules,
    world_to_clip: Float64[np.ndarray, "4 4"],
    width: int,
    height: int,
) -> Int[np.ndarray, " P"]:
    """Index of the capsule whose outline is nearest to each pixel in the picture; −1 for none.

    The distance is the one to the projected axis less the projected radius at that point, in
    pixels; equal distances go to the lower index. Axes are cut where they pass behind the camera;
    capsules wholly behind it do not count. An orthographic camera stands at its near plane, and a
    capsule that touches the space before that plane counts.
    """
    best = np.full(len(pixels), np.inf)
    index = np.full(len(pixels), -1)
    numbers, outlines = _outlines(np.asarray(capsules, np.float64), world_to_clip, width, height)
    if not len(pixels) or not len(numbers):
        return index
    x, y = np.ascontiguousarray(pixels.T)
    tile, reachable = _candidates(x, y, outlines)
    for chosen, number in enumerate(numbers):
        (near,) = reachable[chosen].take(tile).nonzero()
        distance = outlines.distances(chosen, x.take(near), y.take(near))
        (closer,) = (distance < best.take(near)).nonzero()
        near = near[closer]
        best[near], index[near] = distance[closer], number
    return index


def _candidates(
    x: np.ndarray, y: np.ndarray, outlines: _Outlines
) -> tuple[Int[np.ndarray, " P"], Bool[np.ndarray, "N tiles"]]:
    """Each pixel's tile, and which outlines may be the nearest of some pixel of a tile.

    An outline is no candidate in a tile where its smallest possible distance is above another's
    largest possible one.
    """
    columns, rows = (np.floor(axis * (1 / _TILE)).astype(np.intp) for axis in (x, y))
    left, top = columns.min(), rows.min()
    across, down = columns.max() - left + 1, rows.max() - top + 1
    tile = (rows - top) * across + (columns - left)
    middle_y, middle_x = (np.indices((down, across)).reshape(2, -1) + 0.5) * _TILE
    distances = outlines.distances(np.s_[:, None], middle_x + left * _TILE, middle_y + top * _TILE)
    reach = _TILE * np.sqrt(0.5) + 1e-3  # half a tile's diagonal, and room for rounding
    slack = outlines.steepness[:, None] * reach
    return tile, distances - slack <= (distances + slack).min(axis=0)


def _outlines(
    capsules: Float64[np.ndarray, "N 7"], world_to_clip: np.ndarray, width: int, height: int
) -> tuple[Int[np.ndarray, " n"], _Outlines]:
    """The capsules in the picture and their numbers, without absent ones and those behind."""
    numbers, axes = _visible_axes(capsules, world_to_clip)
    ends, _ = project(axes, world_to_clip, width, height)
    w = _clip_w(axes, world_to_clip)
    radii = capsules[numbers, 6:] * np.linalg.norm(world_to_clip[:3, 0]) * (width / 2) / w
    start, along = ends[:, 0], ends[:, 1] - ends[:, 0]
    sides = (*start.T, *along.T, radii[:, 0], radii[:, 1] - radii[:, 0])
    return numbers, _Outlines(*map(np.ascontiguousarray, sides))


def _clip_w(points: Float64[np.ndarray, "*batch 3"], world_to_clip: np.ndarray) -> np.ndarray:
    """Homogeneous clip coordinate w of world points: their depth along a perspective camera."""
    return np.asarray(points @ world_to_clip[:3, 3] + world_to_clip[3, 3])


def _visible_axes(
    capsules: Float64[np.ndarray, "N 7"], world_to_clip: np.ndarray
) -> tuple[Int[np.ndarray, " n"], Float64[np.ndarray, "n 2 3"]]:
    """Numbers of the capsules that are not wholly behind the camera, and the axes before it."""
    axes = capsules[:, :6].reshape(-1, 2, 3)
    before = near_plane_distance(axes, world_to_clip)
    if before is None:
        before, margin = _clip_w(axes, world_to_clip), 1e-2  # w must not come near 0
    else:
        before, margin = before + capsules[:, 6:], 0.0
    present = ~np.isnan(capsules).any(axis=1)
    numbers = np.flatnonzero(present & (before.max(axis=1, initial=-np.inf) > _IN_FRONT))
    axes, before = axes[numbers].copy(), before[numbers]
    for cut in np.flatnonzero(before.min(axis=1, initial=np.inf) <= _IN_FRONT):
        behind, front = (0, 1) if before[cut, 0] < before[cut, 1] else (1, 0)
        floor = max(_IN_FRONT, before[cut, front] * margin)
        axes[cut] = _cut_axis(axes[cut], before[cut], front, behind, floor)
    return numbers, axes


def _cut_axis(
    axis: Float64[np.ndarray, "2 3"],
    before: Float64[np.ndarray, "2"],
    front: int,
    behind: int,
    floor: float,
) -> Float64[np.ndarray, "2 3"]:
    """The axis from its end in front of the camera to where `before` falls to `floor`."""
    along = axis[behind] - axis[front]
    cut = axis[front] + along * (before[front] - floor) / (before[front] - before[behind])
    return np.stack([axis[front], cut])
