"""The exact outline of a capsule in the picture, from its spheres' projected quadrics."""

import numpy as np
from jaxtyping import Float64

from gc25d.geometry.camera import near_plane_distance

POINTS = 64
"""Corners of the polygon that stands for an outline."""


def capsule_outline(
    capsule: Float64[np.ndarray, "7"],
    world_to_clip: Float64[np.ndarray, "4 4"],
    width: int,
    height: int,
) -> Float64[np.ndarray, "N 2"] | None:
    """Convex polygon (u, v) of a capsule's outline; None when it is absent or not wholly in front.

    A sphere is seen as an ellipse whose dual conic is P·Q*·Pᵀ, Q* the sphere's dual quadric and P
    the camera (R. Hartley, A. Zisserman, "Multiple View Geometry", §8.3). A capsule is the convex
    hull of its end spheres, and so is its outline of theirs: in each direction the farther of the
    two ellipses' support points. Holds for perspective and orthographic cameras.
    """
    if np.isnan(capsule).any():
        return None
    before = near_plane_distance(capsule[:6].reshape(2, 3), world_to_clip)
    if before is not None and before.min() < capsule[6]:
        return None
    camera = _pixel_camera(world_to_clip, width, height)
    ellipses = [_ellipse(camera, capsule[i : i + 3], capsule[6]) for i in (0, 3)]
    angles = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)
    normals = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    supports = [_support(*ellipse, normals) for ellipse in ellipses if ellipse is not None]
    if len(supports) < len(ellipses):
        return None
    reach = np.stack([np.einsum("ni,ni->n", normals, points) for points in supports])
    return np.asarray(np.stack(supports)[reach.argmax(axis=0), np.arange(POINTS)])


def _pixel_camera(world_to_clip: np.ndarray, width: int, height: int) -> np.ndarray:
    """P [3, 4] with (u·w, v·w, w) = P · (x, y, z, 1)."""
    x, y, w = world_to_clip[:, 0], world_to_clip[:, 1], world_to_clip[:, 3]
    return np.stack([(x + w) * (width / 2), (w - y) * (height / 2), w])


def _ellipse(
    camera: np.ndarray, centre: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Centre and covariance-like matrix S of a sphere's ellipse; None when it is no ellipse."""
    homogeneous = np.append(centre, 1.0)
    quadric = np.diag([radius**2] * 3 + [0.0]) - np.outer(homogeneous, homogeneous)
    conic = camera @ quadric @ camera.T
    if conic[2, 2] >= 0 or camera[2] @ homogeneous <= 0:  # it touches the camera's own plane
        return None
    middle = conic[:2, 2] / conic[2, 2]
    return middle, np.outer(middle, middle) - conic[:2, :2] / conic[2, 2]


def _support(middle: np.ndarray, spread: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """The ellipse's farthest point in each direction: c + S·n / √(nᵀ·S·n)."""
    stretched = normals @ spread
    lengths = np.sqrt(np.maximum(np.einsum("ni,ni->n", normals, stretched), 1e-12))
    return np.asarray(middle + stretched / lengths[:, None])
