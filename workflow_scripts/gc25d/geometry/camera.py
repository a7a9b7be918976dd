"""Cameras as one matrix each: `world_to_clip`, built, projected through and unprojected.

Conventions, used everywhere in the package:

- World: Unreal's axes, left-handed: X forward, Y right, Z up; centimetres.
- Row vectors: `p_clip = [x y z 1] @ world_to_clip`.
- Clip space: x right, y up, `ndc = clip / w`; reversed Z, so depth is 1 at the near plane and falls
  to 0 at the far plane, which may be infinite.
- Image: continuous pixel coordinates (u, v) in [0, width] × [0, height], v down. The integer pixel
  (x, y) covers a unit square whose centre is (x + 0.5, y + 0.5).
"""

import math

import numpy as np
from jaxtyping import Float64

from gc25d.errors import UserError

Matrix = Float64[np.ndarray, "*batch 4 4"]
_PARALLEL = 1e-12
"""Rays are parallel if w changes by at most this share of itself over 1 cm: mere rounding."""


def rotator_axes(pitch: float, yaw: float, roll: float) -> Float64[np.ndarray, "3 3"]:
    """World directions of a rotated body's forward, right and up, one a row.

    Args:
        pitch: degrees; positive looks up.
        yaw: degrees; positive turns right (X towards Y).
        roll: degrees; positive leans to the right.

    Formula: Unreal's FRotationMatrix; forward = (cosP·cosY, cosP·sinY, sinP).
    """
    angles = [math.radians(angle) for angle in (pitch, yaw, roll)]
    cp, cy, cr = map(math.cos, angles)
    sp, sy, sr = map(math.sin, angles)
    return np.array(
        [
            [cp * cy, cp * sy, sp],
            [sr * sp * cy - cr * sy, sr * sp * sy + cr * cy, -sr * cp],
            [-(cr * sp * cy + sr * sy), cy * sr - cr * sp * sy, cr * cp],
        ]
    )


def quaternion_axes(xyzw: Float64[np.ndarray, "4"]) -> Float64[np.ndarray, "3 3"]:
    """World directions of forward, right and up of a body rotated by a quaternion (x, y, z, w).

    The order is Unreal's FQuat: the scalar is last. The length is normalised away.

    Raises:
        UserError: the quaternion is zero or not finite, so it is no rotation.
    """
    length = float(np.linalg.norm(xyzw))
    if not (0 < length < math.inf):
        raise UserError(
            f"quaternion {[float(value) for value in xyzw]} is no rotation: expected (x, y, z, w) "
            "of finite length above 0; check the exporter"
        )
    x, y, z, w = np.asarray(xyzw, np.float64) / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
            [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
            [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def look(
    position: Float64[np.ndarray, "3"], axes: Float64[np.ndarray, "3 3"]
) -> Float64[np.ndarray, "4 4"]:
    """World → view (x right, y up, z forward) of a camera at `position` with `axes` (rows)."""
    forward, right, up = axes
    view = np.eye(4)
    view[:3, :3] = np.stack([right, up, forward], axis=1)
    view[3, :3] = -np.asarray(position, np.float64) @ view[:3, :3]
    return view


def perspective(
    horizontal_fov: float, aspect: float, near: float, far: float = math.inf
) -> Float64[np.ndarray, "4 4"]:
    """View → clip of a perspective camera, reversed Z.

    Args:
        horizontal_fov: degrees, full angle.
        aspect: width / height of the picture in square pixels.
        near: distance of the plane of depth 1, cm.
        far: distance of the plane of depth 0, cm; may be infinite.
    """
    scale = 1 / math.tan(math.radians(horizontal_fov) / 2)
    clip = np.zeros((4, 4))
    clip[0, 0], clip[1, 1], clip[2, 3] = scale, scale * aspect, 1
    clip[2, 2] = 0 if math.isinf(far) else -near / (far - near)
    clip[3, 2] = near if math.isinf(far) else near * far / (far - near)
    return clip


def orthographic(
    width: float, height: float, near: float, far: float
) -> Float64[np.ndarray, "4 4"]:
    """View → clip of an orthographic camera that sees `width` × `height` cm, reversed Z."""
    clip = np.diag([2 / width, 2 / height, -1 / (far - near), 1])
    clip[3, 2] = far / (far - near)
    return clip


def project(
    points: Float64[np.ndarray, "*batch 3"], world_to_clip: Matrix, width: int, height: int
) -> tuple[Float64[np.ndarray, "*batch 2"], Float64[np.ndarray, "*batch"]]:
    """Where world points (cm) fall in the picture, and their depth (1 near, 0 far).

    Leading axes of `points` and `world_to_clip` broadcast. Points behind the camera get NaN.

    Returns:
        Continuous pixel coordinates (u, v), and depth.
    """
    homogeneous = np.concatenate([points, np.ones_like(points[..., :1])], axis=-1)
    clip = (homogeneous[..., None, :] @ world_to_clip)[..., 0, :]
    w = np.where(clip[..., 3] > 0, clip[..., 3], np.nan)
    ndc = clip[..., :3] / w[..., None]
    u = (ndc[..., 0] + 1) * width / 2
    v = (1 - ndc[..., 1]) * height / 2
    return np.stack([u, v], axis=-1), ndc[..., 2]


def pixel_centers(width: int, height: int) -> Float64[np.ndarray, "H W 2"]:
    """Continuous coordinates (u, v) of the centres of all pixels."""
    return np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), axis=-1)


def unproject_rays(
    world_to_clip: Matrix, pixels: Float64[np.ndarray, "*batch 2"], width: int, height: int
) -> tuple[Float64[np.ndarray, "*batch 3"], Float64[np.ndarray, "*batch 3"]]:
    """The ray through each continuous pixel coordinate.

    Leading axes of `world_to_clip` and `pixels` broadcast. Works for perspective and orthographic
    cameras and for an infinite far plane (a homogeneous point at infinity is a direction).

    Returns:
        Origins on the near plane (cm) and unit directions away from the camera.
    """
    x = pixels[..., 0] * (2 / width) - 1
    y = 1 - pixels[..., 1] * (2 / height)
    one = np.ones_like(x)
    inverse = np.linalg.inv(world_to_clip)
    near, far = (
        (np.stack([x, y, depth, one], axis=-1)[..., None, :] @ inverse)[..., 0, :]
        for depth in (one, np.zeros_like(x))
    )
    towards = far[..., :3] * near[..., 3:] - near[..., :3] * far[..., 3:]
    return (
        near[..., :3] / near[..., 3:],
        towards / np.linalg.norm(towards, axis=-1, keepdims=True),
    )


def camera_fault(world_to_clip: Float64[np.ndarray, "4 4"]) -> str:
    """What keeps a finite matrix from being a camera of these conventions, or "".

    Looked at is the ray through the picture's centre, along which x/w and y/w stay 0. Along
    grad x × grad y it would run in a world that is not mirrored, where right × up is forward.
    """
    try:
        inverse = np.linalg.inv(world_to_clip)
    except np.linalg.LinAlgError:
        return "is singular, so no pixel has a ray"
    near, far = inverse[2] + inverse[3], inverse[3]
    if near[3] <= 0:
        return "has w below 0 in front of it: its matrix is negated"
    towards = far[:3] * near[3] - near[:3] * far[3]
    if np.cross(world_to_clip[:3, 0], world_to_clip[:3, 1]) @ towards <= 0:
        return (
            "is mirrored, has w below 0 in front of it, or its depth does not fall from 1 (near) "
            "to 0 (far)"
        )
    return ""


def near_plane_distance(
    points: Float64[np.ndarray, "*batch 3"], world_to_clip: Float64[np.ndarray, "4 4"]
) -> Float64[np.ndarray, "*batch"] | None:
    """How far world points lie before an orthographic camera's near plane, cm; behind it < 0.

    None for a perspective camera, which is a point: behind it clip w is below 0.
    """
    if np.linalg.norm(world_to_clip[:3, 3]) > _PARALLEL * abs(world_to_clip[3, 3]):
        return None
    depth = points @ world_to_clip[:3, 2] + world_to_clip[3, 2]
    return np.asarray((world_to_clip[3, 3] - depth) / np.linalg.norm(world_to_clip[:3, 2]))
