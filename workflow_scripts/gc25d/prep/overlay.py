"""Semantic ids in colour, for pictures that people look at."""

import numpy as np
from jaxtyping import UInt8

from gc25d.prep.parts import SEM, UNKNOWN

Rgb = tuple[int, int, int]

PALETTE: dict[str, Rgb] = {
    "sky": (92, 104, 120),
    "ground": (112, 98, 72),
    "path": (136, 124, 100),
    "water": (80, 104, 124),
    "foliage": (88, 112, 84),
    "structure": (146, 149, 156),
    "prop": (160, 152, 124),
    "player_head": (255, 140, 255),
    "player_torso": (214, 0, 214),
    "player_arms": (255, 64, 160),
    "player_legs": (128, 44, 224),
    "player_hands_feet": (176, 120, 255),
    "player_weapon": (0, 240, 240),
    "boss_head": (255, 200, 64),
    "boss_torso": (228, 24, 24),
    "boss_arms": (255, 128, 0),
    "boss_legs": (150, 12, 12),
    "boss_hands_feet": (255, 96, 72),
    "boss_weapon": (32, 72, 255),
    "unknown": (40, 40, 40),
}
"""Static classes are muted; the player is magenta to violet with a cyan weapon, the boss red to
orange with a blue weapon; unknown is hatched."""

_HATCH: Rgb = (208, 208, 208)
_HATCH_PERIOD = 8
_HATCH_WIDTH = 2


def colourise(sem_ids: UInt8[np.ndarray, "*batch H W"]) -> UInt8[np.ndarray, "*batch H W 3"]:
    """Colours of the ids; unknown gets diagonal stripes. Ids without a name show as unknown."""
    known = np.isin(sem_ids, list(SEM.values()))
    ids = np.where(known, sem_ids, np.uint8(UNKNOWN))
    coloured = _COLOURS[ids]
    coloured[(ids == UNKNOWN) & _stripes(*sem_ids.shape[-2:])] = _HATCH
    return coloured


def _stripes(height: int, width: int) -> np.ndarray:
    return np.add.outer(np.arange(height), np.arange(width)) % _HATCH_PERIOD < _HATCH_WIDTH


def _colours() -> np.ndarray:
    table = np.zeros((256, 3), np.uint8)
    for name, colour in PALETTE.items():
        table[SEM[name]] = colour
    return table


_COLOURS = _colours()


def overlay(
    frames: UInt8[np.ndarray, "*batch H W 3"],
    sem_ids: UInt8[np.ndarray, "*batch H W"],
    alpha: float = 0.5,
) -> UInt8[np.ndarray, "*batch H W 3"]:
    """The frames with the ids' colours laid over them; `alpha` 0 shows the frame, 1 the colours."""
    mixed = frames * (1 - alpha) + colourise(sem_ids) * alpha
    return np.rint(mixed).astype(np.uint8)


def legend() -> list[tuple[str, int, Rgb]]:
    """Name, id and colour of every class, in the order of the ids."""
    return [(name, SEM[name], colour) for name, colour in PALETTE.items()]
