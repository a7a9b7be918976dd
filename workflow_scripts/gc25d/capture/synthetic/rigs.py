"""Cameras that follow the player."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gc25d.capture.synthetic.bodies import Stance
from gc25d.capture.synthetic.camera import Camera, Projection

_CHEST = 115.0  # cm above the ground: what a camera looks at
_SWAY = 2.5  # degrees of roll to either side
_SWAY_SECONDS = 2.7


@dataclass(frozen=True)
class Rig:
    """How a camera hangs behind the player."""

    projection: Projection
    span: float
    """As `Camera.span`."""
    pitch: float
    """Degrees."""
    distance: float
    """cm behind the player's chest."""
    turns: bool
    """Whether the camera turns with the player; else it keeps its heading."""
    near: float
    far: float


def follow(
    rig: Rig, stances: Sequence[Stance], ground_z: float, heading: float, fps: float
) -> list[Camera]:
    """A camera for each stance: place and heading lag behind the player, and it sways a little.

    Args:
        rig: the camera.
        stances: the player's, frame by frame.
        ground_z: cm.
        heading: yaw of a rig that does not turn, degrees.
        fps: frames a second.
    """
    keep, first = math.exp(-4 / fps), stances[0]
    x, y, yaw = first.x, first.y, first.yaw if rig.turns else heading
    cameras = []
    for frame, stance in enumerate(stances):
        x, y = stance.x + keep * (x - stance.x), stance.y + keep * (y - stance.y)
        if rig.turns:
            yaw = stance.yaw + keep * (yaw - stance.yaw)
        roll = _SWAY * math.sin(2 * math.pi * frame / fps / _SWAY_SECONDS)
        cameras.append(_behind(rig, (x, y, ground_z + _CHEST), yaw, roll))
    return cameras


def _behind(rig: Rig, seen: tuple[float, float, float], yaw: float, roll: float) -> Camera:
    pitch, heading = math.radians(rig.pitch), math.radians(yaw)
    level = rig.distance * math.cos(pitch)
    x, y = seen[0] - level * math.cos(heading), seen[1] - level * math.sin(heading)
    position = x, y, seen[2] - rig.distance * math.sin(pitch)
    return Camera(position, rig.pitch, yaw, roll, rig.projection, rig.span, rig.near, rig.far)
