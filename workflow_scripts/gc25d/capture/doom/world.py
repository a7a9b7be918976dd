"""From Doom's map units to the raw format's world, and the camera of a player's pose.

Doom: X east, Y north, Z up, angles count from east to north. Ours: X forward, Y right, Z up, so
Y and the angle change sign. A map unit is 3 cm across and 3.6 cm up: Doom draws every map unit 1.2
times as high as wide, and in a world stretched that way its pixels are square.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from gc25d.geometry.camera import look, perspective, rotator_axes

CM = 3.0
"""Centimetres of a map unit along X and Y."""
CM_UP = CM * 1.2
"""Centimetres of a map unit along Z."""
NEAR_CM = 10.0
_SCALE = np.array([CM, -CM, CM_UP])


@dataclass(frozen=True)
class Pose:
    """The player's eye in map units and degrees."""

    x: float
    y: float
    z: float
    angle: float
    fov: float
    """Horizontal field of view of a 4:3 picture."""


def to_world(points: Float64[np.ndarray, "*batch 3"]) -> Float64[np.ndarray, "*batch 3"]:
    """Map units → cm in the world's axes."""
    return np.asarray(points * _SCALE)


def to_map_xy(xy: Float64[np.ndarray, "*batch 2"]) -> Float64[np.ndarray, "*batch 2"]:
    """World XY in cm → map units."""
    return np.asarray(xy / _SCALE[:2])


def horizontal_fov(fov: float, width: int, height: int) -> float:
    """Degrees across the picture: pictures wider than 4:3 see more, narrower ones the same."""
    wider = max(1.0, width / height * 3 / 4)
    return 2 * math.degrees(math.atan(math.tan(math.radians(fov) / 2) * wider))


def camera(pose: Pose, width: int, height: int) -> Float64[np.ndarray, "4 4"]:
    """`world_to_clip` of the player's eye, with an infinite far plane."""
    eye = to_world(np.array([pose.x, pose.y, pose.z]))
    view = look(eye, rotator_axes(0.0, -pose.angle, 0.0))
    clip = perspective(horizontal_fov(pose.fov, width, height), width / height, NEAR_CM)
    return np.asarray(view @ clip)
