"""Walking bodies of capsules: from a stance to eleven limbs with their parts."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt8

from gc25d.capture.raw.classes import BODY, FIRST_PART
from gc25d.capture.synthetic.scene import Color

LIMBS = (
    *("head", "torso", "arms", "arms", "legs", "legs"),
    *("hands_feet", "hands_feet", "hands_feet", "hands_feet", "weapon"),
)
"""Part of each capsule of a body."""

COLORS: dict[str, dict[str, Color]] = {
    "player": {
        "head": (0.93, 0.76, 0.62),
        "torso": (0.20, 0.38, 0.85),
        "arms": (0.34, 0.58, 0.95),
        "legs": (0.16, 0.20, 0.42),
        "hands_feet": (0.95, 0.86, 0.30),
        "weapon": (0.88, 0.92, 0.96),
    },
    "boss": {
        "head": (0.36, 0.10, 0.40),
        "torso": (0.72, 0.12, 0.14),
        "arms": (0.92, 0.34, 0.16),
        "legs": (0.40, 0.07, 0.10),
        "hands_feet": (0.14, 0.12, 0.14),
        "weapon": (0.98, 0.78, 0.12),
    },
}
"""Colour of each part of a character."""

_STRIDE = 28.0  # degrees that a leg swings to either side


@dataclass(frozen=True)
class Stance:
    """How a character stands on the ground."""

    x: float
    """cm."""
    y: float
    """cm."""
    yaw: float
    """Degrees, from X towards Y; not wrapped."""
    gait: float = 0.0
    """Phase of the walk, radians."""
    swing: float = 0.0
    """How far the limbs swing: 0 standing, 1 walking."""
    strike: float = 0.0
    """Phase of the blow, radians; 0 carries the weapon."""


def body_parts(who: str) -> UInt8[np.ndarray, "11"]:
    """Part id of each capsule of the player's or the boss's body."""
    return np.array([FIRST_PART[who] + BODY.index(limb) for limb in LIMBS], np.uint8)


def body(stance: Stance, ground_z: float, scale: float) -> Float32[np.ndarray, "11 7"]:
    """Capsules in cm of a body 182·scale cm high, in the order of `LIMBS`."""
    limbs = np.array(_limbs(stance)) * scale
    yaw = math.radians(stance.yaw)
    forward = np.array([math.cos(yaw), math.sin(yaw), 0.0])
    right = np.array([-math.sin(yaw), math.cos(yaw), 0.0])
    axes = np.stack([forward, right, [0.0, 0.0, 1.0]])
    feet = np.array([stance.x, stance.y, ground_z])
    ends = limbs[:, :6].reshape(-1, 2, 3) @ axes + feet
    return np.concatenate([ends.reshape(-1, 6), limbs[:, 6:]], axis=1).astype(np.float32)


def _limbs(stance: Stance) -> list[list[float]]:
    """Rows (forward, right, up) of both ends and the radius, of a body that looks forward."""
    swing = math.radians(_STRIDE) * stance.swing * math.sin(stance.gait)
    raised = math.radians(15 + 55 * math.sin(stance.strike))
    arms, legs, hands, feet = [], [], [], []
    for side in (-1, 1):
        stride = side * swing
        ankle = [78 * math.sin(stride), side * 14, 92 - 78 * math.cos(stride)]
        legs.append([0, side * 12, 92, *ankle, 10])
        feet.append([*ankle, ankle[0] + 17, side * 16, max(ankle[2] - 6, 8), 8])
        reach = raised if side > 0 else -stride + 0.2
        hand = [58 * math.sin(reach), side * 31, 140 - 58 * math.cos(reach)]
        arms.append([0, side * 27, 140, *hand, 8])
        hands.append([*hand, hand[0] + 4, side * 31, hand[2] - 4, 9])
    grip = hands[1][3:6]
    lift = raised - math.radians(20)
    tip = [grip[0] + 85 * math.cos(lift), grip[1] + 34, grip[2] + 85 * math.sin(lift)]
    middle: list[list[float]] = [[0, 0, 162, 3, 0, 168, 14], [0, 0, 100, 2, 0, 138, 20]]
    return [*middle, *arms, *legs, *hands, *feet, [*grip, *tip, 4]]
