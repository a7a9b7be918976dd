"""Capsules (two end points and a radius) against rays, and their distance in the picture.

A capsule is a row (x0, y0, z0, x1, y1, z1, radius) in cm. One that holds NaN is absent.
"""

from itertools import product

import numpy as np
from jaxtyping import Float, Float64, Int

from gc25d.geometry.camera import project, unproject_rays

Capsules = Float[np.ndarray, "N 7"]
_IN_FRONT = 1e-6  # smallest clip w (or fraction of the farther end's) that still projects


def ray_distances(
    origins: Float64[np.ndarray, "P 3"],
    directions: Float64[np.ndarray, "P 3"],
    capsule: Float64[np.ndarray, "7"],
) -> Float64[np.ndarray, " P"]:
    """Distance along each ray to its first hit with one capsule; infinite where it misses.

    A ray that starts inside hits at 0. Source: quadratic of the infinite cylinder, then of the two
    end spheres (I. Quilez, "capsule intersection"), solved for unit directions.
    """
    start, end, radius = capsule[:3], capsule[3:6], capsule[6]
    axis = end - start
    offset = origins - start
    length2 = axis @ axis
    along_d, along_o = directions @ axis, offset @ axis
    cross = np.einsum("pi,pi->p", directions, offset)
    a = length2 - along_d**2
    b = length2 * cross - along_d * along_o
    c = length2 * np.einsum("pi,pi->p", offset, offset) - along_o**2 - radius**2 * length2
    side = _entry(a, b, c)
    height = along_o + np.where(np.isfinite(side), side, 0.0) * along_d
    on_side = np.isfinite(side) & (height > 0) & (height < length2)
    best = np.where(on_side, side, np.inf)
    for centre in (start, end):
        delta = origins - centre
        b = np.einsum("pi,pi->p", directions, delta)
        c = np.einsum("pi,pi->p", delta, delta) - radius**2
        best = np.minimum(best, _entry(np.ones_like(b), b, c))
    best = np.where(best < 0, np.inf, best)
    return np.where(_inside(origins, capsule), 0.0, best)


def _entry(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Smaller root of a·t² + 2b·t + c; infinite where there is none."""
    discriminant = b * b - a * c
    real = (discriminant >= 0) & (a > 0)
    root = (-b - np.sqrt(np.where(real, discriminant, 0.0))) / np.where(real, a, 1.0)
    return np.where(real, root, np.inf)


def _inside(points: np.ndarray, capsule: np.ndarray) -> np.ndarray:
    start, axis = capsule[:3], capsule[3:6] - capsule[:3]
    offset = points - start
    fraction = np.clip(offset @ axis / max(float(axis @ axis), 1e-12), 0, 1)
    nearest = offset - fraction[:, None] * axis
    return np.asarray(np.einsum("pi,pi->p", nearest, nearest) <= capsule[6] ** 2)


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
    """
    origins, directions = unproject_rays(world_to_clip, pixels, width, height)
    best = np.full(len(pixels), np.inf)
    index = np.full(len(pixels), -1)
    for number, capsule in enumerate(np.asarray(capsules, np.float64)):
        if np.isnan(capsule).any():
            continue
        near = np.flatnonzero(_may_cover(pixels, capsule, world_to_clip, width, height))
        distance = ray_distances(origins[near], directions[near], capsule)
        closer = distance < best[near]
        best[near[closer]] = distance[closer]
        index[near[closer]] = number
    return index


def _may_cover(
    pixels: np.ndarray, capsule: np.ndarray, world_to_clip: np.ndarray, width: int, height: int
) -> np.ndarray:
    ends = capsule[:6].reshape(2, 3)
    low, high = ends.min(axis=0) - capsule[6], ends.max(axis=0) + capsule[6]
    corners = np.array([np.where(pick, high, low) for pick in product((False, True), repeat=3)])
    outline, _ = project(corners, world_to_clip, width, height)
    if np.isnan(outline).any():  # part of it lies behind the camera: no outline
        return np.ones(len(pixels), np.bool_)
    return np.asarray(
        ((pixels >= outline.min(axis=0)) & (pixels <= outline.max(axis=0))).all(axis=-1)
    )


def nearest_in_image(
    pixels: Float64[np.ndarray, "P 2"],
    capsules: Capsules,
    world_to_clip: Float64[np.ndarray, "4 4"],
    width: int,
    height: int,
) -> Int[np.ndarray, " P"]:
    """Index of the capsule whose outline is nearest to each pixel in the picture; −1 for none.

    The distance is the one to the projected axis less the projected radius at that point, in
    pixels. Axes are cut where they pass behind the camera; capsules wholly behind it do not count.
    """
    best = np.full(len(pixels), np.inf)
    index = np.full(len(pixels), -1)
    for number, capsule in enumerate(np.asarray(capsules, np.float64)):
        seen = _visible_axis(capsule, world_to_clip)
        if seen is None:
            continue
        ends, _ = project(seen, world_to_clip, width, height)
        w = seen @ world_to_clip[:3, 3] + world_to_clip[3, 3]
        radii = capsule[6] * np.linalg.norm(world_to_clip[:3, 0]) * (width / 2) / w
        distance = _outline_distance(pixels, ends, radii)
        closer = distance < best
        best[closer], index[closer] = distance[closer], number
    return index


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


def _outline_distance(pixels: np.ndarray, ends: np.ndarray, radii: np.ndarray) -> np.ndarray:
    axis = ends[1] - ends[0]
    offset = pixels - ends[0]
    fraction = np.clip(offset @ axis / max(float(axis @ axis), 1e-12), 0, 1)
    gap = np.linalg.norm(offset - fraction[:, None] * axis, axis=-1)
    return np.asarray(gap - (radii[0] + fraction * (radii[1] - radii[0])))
