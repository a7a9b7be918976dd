"""Where pixels meet the ground plane: one small matrix a frame, linear in the pixel."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64

_EDGE_ON = 1e-6
"""Share of `_reach` below which a plane is seen edge-on: above the rounding of float32 cameras."""


def ground_plane(ground_z: Sequence[float]) -> float | None:
    """Height of a run's ground plane in cm.

    The first value of `ground_z`; when that is NaN the median of the values that are not; None when
    there is no value at all.
    """
    known = [value for value in ground_z if not math.isnan(value)]
    if not known:
        return None
    return float(ground_z[0]) if not math.isnan(ground_z[0]) else float(np.median(known))


def ground_matrix(
    world_to_clip: Float64[np.ndarray, "*batch 4 4"], plane_z: float, width: int, height: int
) -> Float64[np.ndarray, "*batch 3 4"]:
    """The matrix G with `[u v 1] @ G = (x·q, y·q, q, depth)` for a pixel (u, v) of the plane.

    (x, y, plane_z) is the ground point, q its inverse clip w (in front of the camera: q > 0) and
    depth its reversed-Z depth (beyond the near plane: depth ≤ 1). All four are linear in the pixel,
    so callers that walk a grid can add a row term to a column term. A plane seen edge-on, as far as
    rounding of the camera can tell, gives a zero matrix: no pixel hits it.

    Source: the plane's homography to the picture, inverted by cross products of its rows.
    """
    plane = np.stack(
        [
            world_to_clip[..., 0, :],
            world_to_clip[..., 1, :],
            plane_z * world_to_clip[..., 2, :] + world_to_clip[..., 3, :],
        ],
        axis=-2,
    )  # [x y 1] @ plane = clip
    first, second, third = (plane[..., row, [0, 1, 3]] for row in range(3))
    adjugate = np.stack(
        [np.cross(second, third), np.cross(third, first), np.cross(first, second)], axis=-1
    )
    determinant = np.sum(first * adjugate[..., :, 0], axis=-1)[..., None, None]
    edge_on = np.abs(determinant) <= _EDGE_ON * _reach(world_to_clip, third)[..., None, None]
    inverse = np.where(edge_on, 0.0, adjugate / np.where(edge_on, 1.0, determinant))
    from_ndc = np.concatenate([inverse, inverse @ plane[..., :, 2:3]], axis=-1)
    to_ndc = np.array([[2 / width, 0, 0], [0, -2 / height, 0], [-1, 1, 1]])
    return np.asarray(to_ndc @ from_ndc)


def _reach(
    world_to_clip: Float64[np.ndarray, "*batch 4 4"], origin: Float64[np.ndarray, "*batch 3"]
) -> Float64[np.ndarray, " *batch"]:
    """The largest that the plane's determinant could be with the camera turned any way.

    `origin` is the clip (x, y, w) of the plane's point (0, 0). The determinant is a sum of its
    entries times 2 × 2 minors of the directions; each minor is at most the product of two lengths.
    For a perspective camera its share of this is height above the plane / distance from `origin`,
    for an orthographic one the sine of its pitch.
    """
    x, y, w = np.moveaxis(np.linalg.norm(world_to_clip[..., :3, [0, 1, 3]], axis=-2), -1, 0)
    to_x, to_y, to_w = np.moveaxis(np.abs(origin), -1, 0)
    return np.asarray(y * w * to_x + w * x * to_y + x * y * to_w)


def ground_points(
    world_to_clip: Float64[np.ndarray, "*batch 4 4"],
    pixels: Float64[np.ndarray, "*batch 2"],
    plane_z: float,
    width: int,
    height: int,
) -> tuple[Float64[np.ndarray, "*batch 2"], Bool[np.ndarray, "*batch"]]:
    """World XY (cm) at which the pixels' rays meet the plane Z = `plane_z`.

    Leading axes of `world_to_clip` and `pixels` broadcast. `pixels` are continuous coordinates: the
    centre of the integer pixel (x, y) is (x + 0.5, y + 0.5).

    Returns:
        XY, and whether the ray meets the plane in front of the camera. Where it does not (sky), XY
        is 0.
    """
    matrix = ground_matrix(world_to_clip, plane_z, width, height)
    u, v = pixels[..., 0, None], pixels[..., 1, None]
    point = u * matrix[..., 0, :] + v * matrix[..., 1, :] + matrix[..., 2, :]
    q = point[..., 2]
    hit = (q > 0) & (point[..., 3] <= 1)
    xy = np.where(hit[..., None], point[..., :2] / np.where(hit, q, 1.0)[..., None], 0.0)
    return xy, hit
