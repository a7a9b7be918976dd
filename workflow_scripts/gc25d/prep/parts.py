"""Stencil + skeleton + camera → the semantic id of every pixel.

Ids: 0..6 the scene's static classes (as in the stencil), 10..15 the player's parts, 16..21 the
boss's, 255 unknown.
"""

import numpy as np
from jaxtyping import Float, Float64, Int, UInt8

from gc25d.capture.raw.classes import BODY, FIRST_PART, PARTS, STENCIL
from gc25d.errors import UserError
from gc25d.geometry.capsules import first_hits, nearest_in_image

__all__ = ["LAST_STATIC", "SEM", "STENCIL", "UNKNOWN", "collapse_parts", "part_ids"]

UNKNOWN = 255
LAST_STATIC = STENCIL["prop"]
"""Ids up to this one belong to the scene, the others (unknown aside) to characters."""

SEM: dict[str, int] = {
    **{name: value for name, value in STENCIL.items() if value <= LAST_STATIC},
    **PARTS,
    "unknown": UNKNOWN,
}
"""Name → semantic id."""

_HIGHEST = max(STENCIL.values())


def part_ids(
    stencil: UInt8[np.ndarray, "T H W"],
    world_to_clip: Float64[np.ndarray, "T 4 4"],
    capsules: Float[np.ndarray, "T N 7"],
    part: UInt8[np.ndarray, " N"],
) -> UInt8[np.ndarray, "T H W"]:
    """Semantic ids of a clip.

    Static pixels keep their class. A pixel of a character gets the part of that character's capsule
    that its ray (through the pixel's centre) hits first; when it hits none, of the capsule nearest
    in the picture; when the character has no capsule before the camera, its torso.

    Args:
        stencil: classes 0..8.
        world_to_clip: cameras of these very pixels.
        capsules: cm; one that holds NaN is absent in that frame.
        part: id 10..21 of each capsule.

    Raises:
        UserError: a stencil value is no class, or the lengths differ.
    """
    if not len(stencil) == len(world_to_clip) == len(capsules):
        raise UserError(
            f"{len(stencil)} stencil pictures, {len(world_to_clip)} cameras and {len(capsules)} "
            "skeletons: expected as many of each; capture the run again"
        )
    highest = int(stencil.max(initial=0))
    if highest > _HIGHEST:
        raise UserError(f"stencil class {highest}: expected 0..{_HIGHEST}; check the exporter")
    ids = stencil.copy()
    owned = {
        STENCIL[who]: np.isin(part, range(first, first + len(BODY)))
        for who, first in FIRST_PART.items()
    }
    for frame, camera, posed in zip(ids, world_to_clip, capsules, strict=True):
        places = np.flatnonzero(frame.reshape(-1) > LAST_STATIC)
        shown = frame.reshape(-1).take(places)
        for (character, own), first in zip(owned.items(), FIRST_PART.values(), strict=True):
            # an index of −1 picks the torso, appended last
            parts = np.append(part[own], np.uint8(first + BODY.index("torso")))
            _paint(frame, places[shown == character], camera, posed[own], parts)
    return ids


def _paint(
    ids: UInt8[np.ndarray, "H W"],
    places: Int[np.ndarray, " P"],
    camera: Float64[np.ndarray, "4 4"],
    capsules: Float[np.ndarray, "N 7"],
    parts: UInt8[np.ndarray, " N+1"],
) -> None:
    """Replace one character's pixels (places in the flat picture) by its capsules' parts."""
    height, width = ids.shape
    rows, columns = np.divmod(places, width)
    pixels = np.stack([columns, rows], axis=-1) + 0.5
    chosen = first_hits(pixels, capsules, camera, width, height)
    missed = np.flatnonzero(chosen < 0)
    chosen[missed] = nearest_in_image(pixels[missed], capsules, camera, width, height)
    ids.reshape(-1)[places] = parts[chosen]


def collapse_parts(sem_ids: UInt8[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Parts 10..15 → player (7) and 16..21 → boss (8); every other id stays."""
    return np.asarray(_COLLAPSED[sem_ids])


def _collapsed() -> np.ndarray:
    table = np.arange(256, dtype=np.uint8)
    for who, first in FIRST_PART.items():
        table[first : first + len(BODY)] = STENCIL[who]
    return table


_COLLAPSED = _collapsed()
