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
class Moment:
    """One frame and the episode it belongs to."""

    episode: int
    seen: Observation


def cameras(moments: Sequence[Moment]) -> Float64[np.ndarray, "F 4 4"]:
    """The camera of every frame."""
    return np.stack([_camera(moment.seen) for moment in moments])


def _camera(seen: Observation) -> Float64[np.ndarray, "4 4"]:
    height, width = seen.labels.shape
    return camera(seen.pose, width, height)


def stencils(moments: Sequence[Moment], flats: Flats) -> list[UInt8[np.ndarray, "H W"]]:
    """The classes of every frame's pixels."""
    return [
        stencil_of(
            moment.seen.labels,
            moment.seen.objects,
            flats,
            moment.seen.heights,
            _camera(moment.seen),
            moment.seen.pose.z,
        )
        for moment in moments
    ]


def ground_height(moments: Sequence[Moment]) -> float:
    """Median over the frames of the floor under the player, cm."""
    return float(np.median([moment.seen.floor for moment in moments])) * CM_UP


def skeletons(moments: Sequence[Moment]) -> Skeletons:
    """Capsules: the player's weapon, then one body for each monster that is ever seen.

    A body is absent (NaN) in the frames that do not show its monster.
    """
    slots: dict[tuple[int, int], int] = {}
    for moment in moments:
        for monster in moment.seen.monsters:
            slots.setdefault((moment.episode, monster.identity), 1 + len(slots) * len(BODY_PARTS))
    part = np.array([WEAPON_PART, *(BODY_PARTS * len(slots))], np.uint8)
    capsules = np.full((len(moments), len(part), 7), np.nan, np.float32)
    for posed, moment in zip(capsules, moments, strict=True):
        pose = moment.seen.pose
        if moment.seen.armed:
            eye = to_world(np.array([pose.x, pose.y, pose.z]))
            posed[0] = held_weapon(eye, -pose.angle)
        for monster in moment.seen.monsters:
            first = slots[moment.episode, monster.identity]
            posed[first : first + len(BODY_PARTS)] = _body(monster)
    return Skeletons(capsules, part)


def _body(monster: Actor) -> Float64[np.ndarray, "11 7"]:
    radius, height = _SIZES.get(monster.name, _MAN)
    feet = to_world(np.array([monster.x, monster.y, monster.z]))
    return boss_body(feet, -monster.angle, height * CM_UP, radius * CM)
