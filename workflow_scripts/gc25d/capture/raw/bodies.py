"""Bodies of capsules for sprites, which have no limbs: from position, heading, height and radius.

A capsule is (x0, y0, z0, x1, y1, z1, radius) in cm.
"""

import numpy as np
from jaxtyping import Float64

from gc25d.capture.raw.classes import PARTS
from gc25d.geometry.camera import rotator_axes

# part, start and end as (forward, right, up), radius. Lengths across are fractions of the body's
# radius, heights fractions of its height. "side" limbs are mirrored.
_MIDDLE = (
    ("head", (0.05, 0.0, 0.86), (0.05, 0.0, 0.89), 0.22),
    ("torso", (0.0, 0.0, 0.55), (0.0, 0.0, 0.69), 0.40),
    ("weapon", (0.55, 0.15, 0.57), (1.15, 0.1, 0.60), 0.09),
)
_SIDE = (
    ("arms", (0.0, 0.50, 0.72), (0.30, 0.55, 0.57), 0.15),
    ("legs", (0.0, 0.22, 0.46), (0.0, 0.30, 0.10), 0.19),
    ("hands_feet", (0.42, 0.40, 0.55), (0.50, 0.30, 0.56), 0.12),
    ("hands_feet", (-0.05, 0.30, 0.04), (0.25, 0.32, 0.03), 0.13),
)
_LIMBS = (
    *_MIDDLE,
    *(
        (part, (f0, side * r0, u0), (f1, side * r1, u1), radius)
        for part, (f0, r0, u0), (f1, r1, u1), radius in _SIDE
        for side in (-1, 1)
    ),
)

BODY_PARTS = tuple(PARTS[f"boss_{part}"] for part, *_ in _LIMBS)
"""Part of each of a boss's capsules, in the order of `boss_body`."""

WEAPON_PART = PARTS["player_weapon"]

# Seen from the eye: (forward, right, up) in cm; drawn low in the middle of the picture.
_WEAPON = ((28.0, 0.0, -20.0), (75.0, 0.0, -20.0), 5.0)


def boss_body(
    feet: Float64[np.ndarray, "3"], yaw: float, height: float, radius: float
) -> Float64[np.ndarray, "11 7"]:
    """A standing body.

    Args:
        feet: centre of the base, cm.
        yaw: degrees; 0 looks along X, positive turns right.
        height: cm.
        radius: half the width with the arms, cm.
    """
    size = np.array([radius, radius, height])
    axes = rotator_axes(0.0, yaw, 0.0)
    return np.array(
        [
            [
                *(feet + (np.array(start) * size) @ axes),
                *(feet + (np.array(end) * size) @ axes),
                fraction * radius,
            ]
            for _, start, end, fraction in _LIMBS
        ]
    )


def held_weapon(eye: Float64[np.ndarray, "3"], yaw: float) -> Float64[np.ndarray, "7"]:
    """The weapon of a player seen from their own eyes (cm, degrees)."""
    axes = rotator_axes(0.0, yaw, 0.0)
    start, end, radius = _WEAPON
    return np.array([*(eye + np.array(start) @ axes), *(eye + np.array(end) @ axes), radius])
