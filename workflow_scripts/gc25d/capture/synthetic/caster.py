"""The ray caster: what each pixel of a synthetic picture shows, exactly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int16, UInt8

from gc25d.capture.raw.classes import BODY, FIRST_PART, STENCIL
from gc25d.capture.synthetic.camera import Film, PixelBox, Rays
from gc25d.capture.synthetic.scene import Floor, Solid

FLOOR = -1
"""Surface of a pixel that shows no solid: the floor, or the void."""


@dataclass(frozen=True)
class Cast:
    """One picture."""

    sem_ids: UInt8[np.ndarray, "H W"]
    """Static classes 0..6, the player's parts 10..15, the boss's 16..21."""
    depth: Float64[np.ndarray, "H W"]
    """Distance along the camera's forward axis, cm; infinite in the void."""
    surface: Int16[np.ndarray, "H W"]
    """Place of the solid among those cast, or `FLOOR`."""
    boxes: tuple[PixelBox | None, ...]
    """Pixels that may show each solid."""

    @property
    def stencil(self) -> UInt8[np.ndarray, "H W"]:
        """Classes 0..8 as an engine knows them: characters without their parts."""
        return np.asarray(_STENCIL_OF[self.sem_ids])


def cast(film: Film, floor: Floor, solids: Sequence[Solid]) -> Cast:
    """The first surface that each pixel's ray meets; of equal depths the earlier solid's."""
    xy, hit, depth = meet_floor(film.rays, floor.z)
    sem_ids = np.where(hit, floor.classes(*xy), np.uint8(STENCIL["sky"]))
    depth = np.where(sem_ids == STENCIL["sky"], np.inf, depth)
    surface = np.full(depth.shape, FLOOR, np.int16)
    boxes = tuple(film.outline(*solid.shape.bounds()) for solid in solids)
    for number, (solid, box) in enumerate(zip(solids, boxes, strict=True)):
        if box is None:
            continue
        found = solid.shape.depth(film.rays.within(box))
        nearer = found < depth[box]
        depth[box][nearer] = found[nearer]
        sem_ids[box][nearer] = solid.sem_id
        surface[box][nearer] = number
    return Cast(sem_ids, depth, surface, boxes)


def meet_floor(
    rays: Rays, z: float
) -> tuple[
    Float64[np.ndarray, "2 rows columns"],
    Bool[np.ndarray, "rows columns"],
    Float64[np.ndarray, "rows columns"],
]:
    """Where rays meet the plane Z = z, whatever stands before it.

    Returns:
        World X and Y (cm), whether there is such a point between the near and the far plane, and
        its depth. Where there is none X, Y and depth are 0.
    """
    rise, fall = z - rays.origin[2], rays.direction[2]
    depth = rise / np.where(fall == 0, np.inf, fall)
    hit = (depth >= rays.near) & (depth <= rays.far)
    depth = np.where(hit, depth, 0.0)
    return np.where(hit, rays.at(depth)[:2], 0.0), hit, depth


def _stencil_of() -> UInt8[np.ndarray, "256"]:
    table = np.arange(256, dtype=np.uint8)
    for who, first in FIRST_PART.items():
        table[first : first + len(BODY)] = STENCIL[who]
    return table


_STENCIL_OF = _stencil_of()
