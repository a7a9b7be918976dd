"""Capsules (two end points and a radius) against rays, and their distance in the picture.

A capsule is a row (x0, y0, z0, x1, y1, z1, radius) in cm. One that holds NaN is absent.

Only pixels near a capsule are tested against it. What is left out is out of its reach by bounds
with room for rounding, so the answers are those of testing every pixel against every capsule.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from gc25d.geometry.camera import project

Capsules = Float[np.ndarray, "N 7"]
_IN_FRONT = 1e-6  # smallest clip w (or fraction of the farther end's) that still projects
_TILE = 16  # pixels; on pictures of 480×832, 8 costs 15 % more and 64 costs 7 % more


def ray_distances(
    origins: Float64[np.ndarray, "3 P"],
    directions: Float64[np.ndarray, "3 P"],
    capsule: Float64[np.ndarray, "7"],
) -> Float64[np.ndarray, " P"]:
    """Distance along each ray to its first hit with one capsule; infinite where it misses.

    A ray that starts inside hits at 0. Source: quadratic of the infinite cylinder, then of the two
    end spheres (I. Quilez, "capsule intersection"), solved for unit directions. Both spheres are
    solved from their own centres, so that capsules which share a joint tie there exactly.
    """
    start, end, radius = capsule[:3], capsule[3:6], capsule[6]
    axis = end - start
    offset = origins - start[:, None]
    length2 = float(axis @ axis)
    along_d, along_o = _dot(directions, axis), _dot(offset, axis)
    a = length2 - along_d * along_d
    b = length2 * _dot(directions, offset) - along_d * along_o
    c = length2 * _dot(offset, offset) - along_o * along_o - radius**2 * length2
    side = _entry(a, b, c)
    height = along_o + np.where(np.isfinite(side), side, 0.0) * along_d
    best = np.where((height > 0) & (height < length2), side, np.inf)
    for centre in (start, end):
        delta = origins - centre[:, None]
        b, c = _dot(directions, delta), _dot(delta, delta) - radius**2
        best = np.minimum(best, _entry(1.0, b, c))
    best[best < 0] = np.inf
    fraction = np.clip(along_o / max(length2, 1e-12), 0, 1)
    nearest = offset - fraction * axis[:, None]
    best[_dot(nearest, nearest) <= radius**2] = 0.0
    return best


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Dot product of vectors [3, …], as plain sums: the same on every machine."""
    return np.asarray(a[0] * b[0] + a[1] * b[1] + a[2] * b[2])


def _entry(a: np.ndarray | float, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Smaller root of a·t² + 2b·t + c; infinite where there is none."""
    discriminant = b * b - a * c
    real = (discriminant >= 0) & np.greater(a, 0)
    root = (-b - np.sqrt(np.where(real, discriminant, 0.0))) / np.where(real, a, 1.0)
    return np.where(real, root, np.inf)


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
    columns, rows = np.floor(pixels).astype(np.intp).T
    place = np.full((height, width), -1, np.int32)  # pixel of the picture → its entry in `pixels`
    place[rows, columns] = np.arange(len(pixels))
    origins, directions = _rays(world_to_clip, pixels, width, height)
    for number, capsule in enumerate(np.asarray(capsules, np.float64)):
        if np.isnan(capsule).any():
            continue
        box = place[_outline_box(capsule, world_to_clip, width, height)]
        near = box[box >= 0]
        distance = ray_distances(origins[:, near], directions[:, near], capsule)
        closer = distance < best[near]
        best[near[closer]] = distance[closer]
        index[near[closer]] = number
    return index


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


def _outline_box(
    capsule: np.ndarray, world_to_clip: np.ndarray, width: int, height: int
) -> tuple[slice, slice]:
    """Rows and columns of the pixels that the capsule's bounding box may cover."""
    ends = capsule[:6].reshape(2, 3)
    low, high = ends.min(axis=0) - capsule[6], ends.max(axis=0) + capsule[6]
    corners = np.array([np.where(pick, high, low) for pick in product((False, True), repeat=3)])
    outline, _ = project(corners, world_to_clip, width, height)
    if np.isnan(outline).any():  # part of it lies behind the camera: no outline
        return slice(0, height), slice(0, width)
    # one pixel of room on each side, for rounding
    left, top = np.clip(np.floor(outline.min(axis=0)) - 1, 0, (width, height)).astype(int)
    right, bottom = np.clip(np.floor(outline.max(axis=0)) + 2, 0, (width, height)).astype(int)
    return slice(top, bottom), slice(left, right)


@dataclass(frozen=True)
class _Outline:
    """A capsule in the picture: a projected axis with a radius at each end, pixels."""

    start: Float64[np.ndarray, "2"]
    axis: Float64[np.ndarray, "2"]
    radius: float
    growth: float
    """Radius at the end less the radius at the start."""

    def distance(self, pixels: Float64[np.ndarray, "P 2"]) -> Float64[np.ndarray, " P"]:
        """From each pixel to the outline: to the axis, less the radius there; negative inside."""
        x, y = pixels[:, 0] - self.start[0], pixels[:, 1] - self.start[1]
        along_x, along_y = self.axis
        length2 = max(float(along_x * along_x + along_y * along_y), 1e-12)
        fraction = np.clip((x * along_x + y * along_y) / length2, 0, 1)
        x -= fraction * along_x
        y -= fraction * along_y
        return np.asarray(np.sqrt(x * x + y * y) - (self.radius + fraction * self.growth))

    @property
    def steepness(self) -> float:
        """The distance changes at most so much a pixel (a Lipschitz bound)."""
        return 1 + abs(self.growth) / max(float(np.hypot(*self.axis)), 1e-6)


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
    capsules wholly behind it do not count.
    """
    outlines = {
        number: outline
        for number, capsule in enumerate(np.asarray(capsules, np.float64))
        if (outline := _outline(capsule, world_to_clip, width, height))
    }
    best = np.full(len(pixels), np.inf)
    index = np.full(len(pixels), -1)
    tile, reachable = _candidates(pixels, list(outlines.values()))
    for (number, outline), tiles in zip(outlines.items(), reachable, strict=True):
        near = np.flatnonzero(tiles[tile])
        distance = outline.distance(pixels[near])
        closer = distance < best[near]
        best[near[closer]], index[near[closer]] = distance[closer], number
    return index


def _candidates(
    pixels: np.ndarray, outlines: list[_Outline]
) -> tuple[Int[np.ndarray, " P"], Bool[np.ndarray, "N tiles"]]:
    """Each pixel's tile, and which outlines may be the nearest of some pixel of a tile.

    An outline is out of reach in a tile where another's largest possible distance is smaller than
    its own smallest possible one.
    """
    cells = (pixels // _TILE).astype(np.intp)
    across, down = cells.max(axis=0, initial=0) + 1
    tile = cells[:, 1] * across + cells[:, 0]
    middle_y, middle_x = (np.indices((down, across)).reshape(2, -1) + 0.5) * _TILE
    centres = np.stack([middle_x, middle_y], axis=-1)
    distances = np.array([outline.distance(centres) for outline in outlines])
    reach = _TILE * np.sqrt(0.5) + 1e-3  # half a tile's diagonal, and room for rounding
    slack = np.array([[outline.steepness * reach] for outline in outlines])
    if not outlines:
        return tile, np.zeros((0, len(centres)), np.bool_)
    return tile, distances - slack <= (distances + slack).min(axis=0)


def _outline(
    capsule: np.ndarray, world_to_clip: np.ndarray, width: int, height: int
) -> _Outline | None:
    """The capsule in the picture; None when it is absent or wholly behind the camera."""
    seen = _visible_axis(capsule, world_to_clip)
    if seen is None:
        return None
    (start, end), _ = project(seen, world_to_clip, width, height)
    w = seen @ world_to_clip[:3, 3] + world_to_clip[3, 3]
    radii = capsule[6] * np.linalg.norm(world_to_clip[:3, 0]) * (width / 2) / w
    return _Outline(start, end - start, float(radii[0]), float(radii[1] - radii[0]))


def _visible_axis(capsule: np.ndarray, world_to_clip: np.ndarray) -> np.ndarray | None:
    """The capsule's axis [2, 3], cut to what lies in front of the camera."""
    ends = capsule[:6].reshape(2, 3)
    w = ends @ world_to_clip[:3, 3] + world_to_clip[3, 3]
    if not w.max() > _IN_FRONT or np.isnan(capsule).any():
        return None
    if w.min() > _IN_FRONT:
        return ends
    behind, front = (0, 1) if w[0] < w[1] else (1, 0)
    floor = max(_IN_FRONT, w[front] * 1e-2)
    cut = ends[front] + (ends[behind] - ends[front]) * (w[front] - floor) / (w[front] - w[behind])
    return np.stack([ends[front], cut])
