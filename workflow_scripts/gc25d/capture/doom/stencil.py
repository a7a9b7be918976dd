"""ViZDoom's label of each pixel → the raw format's class.

Its label buffer knows walls (0), flats (1: floors, ceilings and sky alike), one value for each
object and 255 for the player's own weapon. Flats are told apart by geometry: a flat below the eye
is a floor, above it a ceiling, and the first sector of that height that the pixel's ray meets names
the texture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8

from gc25d.capture.doom.floorplan import Floorplan
from gc25d.capture.doom.wad import MapPlan
from gc25d.capture.doom.world import CM_UP, to_map_xy
from gc25d.capture.raw.classes import STENCIL
from gc25d.geometry.camera import pixel_centers
from gc25d.geometry.ground import ground_points

WALL, FLAT, OWN_WEAPON = 0, 1, 255
SKY_TEXTURE = "F_SKY1"
_LIQUIDS = ("NUKAGE", "FWATER", "SWATER", "LAVA", "BLOOD", "SLIME0", "RWATER")


@dataclass(frozen=True)
class Flats:
    """Class of every sector's floor and ceiling, and where the sectors lie."""

    floorplan: Floorplan
    floors: UInt8[np.ndarray, " S"]
    ceilings: UInt8[np.ndarray, " S"]


def classify_flats(plan: MapPlan, floorplan: Floorplan) -> Flats:
    """Classes by texture: liquids are water, other floors ground; sky, other ceilings structure."""
    floors = [
        STENCIL["water"] if texture.startswith(_LIQUIDS) else STENCIL["ground"]
        for texture in plan.floors
    ]
    ceilings = [
        STENCIL["sky"] if texture == SKY_TEXTURE else STENCIL["structure"]
        for texture in plan.ceilings
    ]
    return Flats(floorplan, np.array(floors, np.uint8), np.array(ceilings, np.uint8))


def object_class(category: str) -> int:
    """Class of an object by its category: living monsters are the boss, all else is a prop.

    A corpse has another category than the monster it was, and so becomes a prop.
    """
    return STENCIL["boss"] if category == "Monster" else STENCIL["prop"]


def stencil_of(
    labels: UInt8[np.ndarray, "H W"],
    objects: Mapping[int, str],
    flats: Flats,
    heights: Sequence[tuple[float, float]],
    world_to_clip: Float64[np.ndarray, "4 4"],
    eye_z: float,
) -> UInt8[np.ndarray, "H W"]:
    """Classes of one picture.

    Args:
        labels: the game's label buffer.
        objects: category of each object's label value.
        flats: the map.
        heights: floor and ceiling of each sector now, map units.
        world_to_clip: the picture's camera.
        eye_z: height of the eye, map units.
    """
    table = np.full(256, STENCIL["prop"], np.uint8)
    table[WALL], table[OWN_WEAPON] = STENCIL["structure"], STENCIL["player"]
    for value, category in objects.items():
        if value != OWN_WEAPON:
            table[value] = object_class(category)
    stencil = np.asarray(table[labels])
    floor, ceiling = (np.array(level, np.float64) for level in zip(*heights, strict=True))
    horizon = labels.shape[0] // 2  # the eye never pitches
    for rows, level, classes in (
        (slice(horizon, None), floor, flats.floors),
        (slice(0, horizon), ceiling, flats.ceilings),
    ):
        _paint_flats(stencil, labels, rows, level, classes, flats.floorplan, world_to_clip, eye_z)
    return stencil


def _paint_flats(
    stencil: np.ndarray,
    labels: np.ndarray,
    rows: slice,
    level: np.ndarray,
    classes: np.ndarray,
    floorplan: Floorplan,
    world_to_clip: np.ndarray,
    eye_z: float,
) -> None:
    """Give the flat pixels of `rows` the class of the flat they show, in place.

    Of several planes on one side of the eye a ray meets the one nearest in height first, so planes
    are tried in that order and a pixel keeps the first that has a sector there.
    """
    part = stencil[rows]
    flat = labels[rows] == FLAT
    part[flat] = np.bincount(classes).argmax()  # also what no plane explains (rounding at edges)
    if len(np.unique(classes)) == 1:
        return
    height, width = labels.shape
    pending = np.argwhere(flat)
    centres = pixel_centers(width, height)[rows]
    for plane in sorted(set(level), key=lambda z: abs(z - eye_z)):
        pixels = centres[pending[:, 0], pending[:, 1]]
        xy, hit = ground_points(world_to_clip, pixels, plane * CM_UP, width, height)
        sector = floorplan.sector_at(to_map_xy(xy))
        shown = hit & (sector >= 0) & (level[sector] == plane)
        part[pending[shown, 0], pending[shown, 1]] = classes[sector[shown]]
        pending = pending[~shown]
