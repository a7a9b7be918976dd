"""Observations of a game → the arrays of a raw run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8

from gc25d.capture.doom.engine import Actor, Observation
from gc25d.capture.doom.stencil import Flats, stencil_of
from gc25d.capture.doom.world import CM, CM_UP, camera, to_world
from gc25d.capture.raw.bodies import BODY_PARTS, WEAPON_PART, boss_body, held_weapon
from gc25d.capture.raw.format import Skeletons

# Radius and height in map units of the monsters that are not a man's size (Doom's own table).
_MAN = (20.0, 56.0)
_SIZES = {
    "Demon": (30.0, 56.0),
    "Spectre": (30.0, 56.0),
    "Cacodemon": (31.0, 56.0),
    "PainElemental": (31.0, 56.0),
    "LostSoul": (16.0, 56.0),
    "HellKnight": (24.0, 64.0),
    "BaronOfHell": (24.0, 64.0),
    "Fatso": (48.0, 64.0),
    "Arachnotron": (64.0, 64.0),
    "Cyberdemon": (40.0, 110.0),
    "SpiderMastermind": (128.0, 100.0),
}


@dataclass(frozen=True)
class GameFrame:
    """One frame and the episode it belongs to."""

    episode: int
    seen: Observation


def cameras(frames: Sequence[GameFrame]) -> Float64[np.ndarray, "F 4 4"]:
    """The camera of every frame."""
    return np.stack([_camera(frame.seen) for frame in frames])


def _camera(seen: Observation) -> Float64[np.ndarray, "4 4"]:
    height, width = seen.labels.shape
    return camera(seen.pose, width, height)


def stencils(frames: Sequence[GameFrame], flats: Flats) -> list[UInt8[np.ndarray, "H W"]]:
    """The classes of every frame's pixels."""
    return [
        stencil_of(
            frame.seen.labels,
            frame.seen.objects,
            flats,
            frame.seen.heights,
            _camera(frame.seen),
            frame.seen.pose.z,
        )
        for frame in frames
    ]


def ground_height(frames: Sequence[GameFrame]) -> float:
    """Median over the frames of the floor under the player, cm."""
    return float(np.median([frame.seen.floor for frame in frames])) * CM_UP


def skeletons(frames: Sequence[GameFrame]) -> Skeletons:
    """Capsules: the player's weapon, then one body for each monster that is ever seen.

    A body is absent (NaN) in the frames that do not show its monster.
    """
    slots: dict[tuple[int, int], int] = {}
    for frame in frames:
        for monster in frame.seen.monsters:
            slots.setdefault((frame.episode, monster.identity), 1 + len(slots) * len(BODY_PARTS))
    part = np.array([WEAPON_PART, *(BODY_PARTS * len(slots))], np.uint8)
    capsules = np.full((len(frames), len(part), 7), np.nan, np.float32)
    for posed, frame in zip(capsules, frames, strict=True):
        pose = frame.seen.pose
        if frame.seen.armed:
            eye = to_world(np.array([pose.x, pose.y, pose.z]))
            posed[0] = held_weapon(eye, -pose.angle)
        for monster in frame.seen.monsters:
            first = slots[frame.episode, monster.identity]
            posed[first : first + len(BODY_PARTS)] = _body(monster)
    return Skeletons(capsules, part)


def _body(monster: Actor) -> Float64[np.ndarray, "11 7"]:
    radius, height = _SIZES.get(monster.name, _MAN)
    feet = to_world(np.array([monster.x, monster.y, monster.z]))
    return boss_body(feet, -monster.angle, height * CM_UP, radius * CM)
