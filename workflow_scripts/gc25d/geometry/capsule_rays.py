"""Rays against one capsule: the roots of its cylinder and of its two end spheres."""

import numpy as np
from jaxtyping import Float64


def ray_distances(
    origins: Float64[np.ndarray, "3 P"],
    directions: Float64[np.ndarray, "3 P"],
    capsule: Float64[np.ndarray, "7"],
    may_start_inside: bool = True,
) -> Float64[np.ndarray, " P"]:
    """Distance along each ray to its first hit with one capsule; infinite where it misses.

    A ray that starts inside hits at 0; `may_start_inside` is False where none can. Source:
    quadratic of the infinite cylinder, then of the two end spheres (I. Quilez, "capsule
    intersection"), solved for unit directions. Both spheres are solved from their own centres, so
    that capsules which share a joint tie there exactly.
    """
    start, end, radius = capsule[:3], capsule[3:6], capsule[6]
    axis = end - start
    offset, delta = origins - start[:, None], origins - end[:, None]
    length2 = float(axis @ axis)
    along_d, along_o = _dot(directions, axis), _dot(offset, axis)
    towards, square = _dot(directions, offset), _dot(offset, offset)
    a = length2 - along_d * along_d
    b = length2 * towards - along_d * along_o
    c = length2 * square - along_o * along_o - radius**2 * length2
    with np.errstate(invalid="ignore", divide="ignore"):  # NaN stands for no root
        a[a <= 0] = np.nan
        side = _entry(a, b, c)
        height = along_o + side * along_d
        side[~((height > 0) & (height < length2))] = np.nan
        near = _entry(1.0, towards, square - radius**2)
        far = _entry(1.0, _dot(directions, delta), _dot(delta, delta) - radius**2)
    best = np.asarray(np.fmin(np.fmin(side, near), far))
    best[~(best >= 0)] = np.inf
    if may_start_inside:
        fraction = np.clip(along_o / max(length2, 1e-12), 0, 1)
        nearest = offset - fraction * axis[:, None]
        best[_dot(nearest, nearest) <= radius**2] = 0.0
    return best


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Dot product of vectors [3, …], as plain sums: the same on every machine."""
    total = a[0] * b[0]
    total += a[1] * b[1]
    total += a[2] * b[2]
    return np.asarray(total)


def _entry(a: np.ndarray | float, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Smaller root of a·t² + 2b·t + c for a > 0; NaN where there is none."""
    root = b * b
    root -= a * c
    np.sqrt(root, out=root)
    np.subtract(-b, root, out=root)
    root /= a
    return np.asarray(root)
