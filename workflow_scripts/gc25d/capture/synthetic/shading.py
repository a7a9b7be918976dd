"""The colours of a synthetic picture: one sun, a checkered ground, rippled water, a pale sky."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt8

from gc25d.capture.raw.classes import STENCIL
from gc25d.capture.synthetic.camera import Film
from gc25d.capture.synthetic.caster import FLOOR, Cast
from gc25d.capture.synthetic.scene import Floor, Solid

_SUN = np.array([-0.41, 0.52, 0.75])
_AMBIENT, _DIFFUSE = 0.5, 0.55
_TILE = 100.0  # side of a ground tile, cm
_HORIZON, _ZENITH = np.array([0.80, 0.86, 0.92]), np.array([0.36, 0.56, 0.86])
_TONES = {  # of each: light and dark tiles, crests and troughs
    "ground": np.array([[0.40, 0.55, 0.30], [0.31, 0.45, 0.24]]),
    "path": np.array([[0.74, 0.66, 0.50], [0.66, 0.57, 0.42]]),
    "water": np.array([[0.30, 0.52, 0.68], [0.18, 0.38, 0.58]]),
}


def shade(
    film: Film, floor: Floor, solids: Sequence[Solid], cast: Cast, seconds: float
) -> UInt8[np.ndarray, "H W 3"]:
    """RGB of a picture; `seconds` moves the water."""
    rgb = np.empty((film.height, film.width, 3))
    _shade_sky(film, cast, rgb)
    _shade_floor(film, floor, cast, seconds, rgb)
    for number, (solid, box) in enumerate(zip(solids, cast.boxes, strict=True)):
        if box is not None and (seen := cast.surface[box] == number).any():
            points = film.rays.within(box).at(cast.depth[box])[:, None, seen]
            facing = np.tensordot(_SUN, solid.shape.normals(points)[:, 0], axes=1)
            light = _AMBIENT + _DIFFUSE * np.maximum(facing, 0.0)
            rgb[box][seen] = light[:, None] * np.array(solid.color)
    return np.asarray(255 * np.minimum(rgb, 1.0) + 0.5, np.uint8)


def _shade_sky(film: Film, cast: Cast, rgb: np.ndarray) -> None:
    sky = cast.sem_ids == STENCIL["sky"]
    height = np.clip(2 * _rise(film)[sky], 0, 1)
    rgb[sky] = _HORIZON + height[:, None] * (_ZENITH - _HORIZON)


def _shade_floor(film: Film, floor: Floor, cast: Cast, seconds: float, rgb: np.ndarray) -> None:
    contrast = _contrast(film, cast)
    points = film.rays.at(np.where(np.isfinite(cast.depth), cast.depth, 0.0))
    for name, (light, dark) in _TONES.items():
        own = (cast.surface == FLOOR) & (cast.sem_ids == STENCIL[name])
        pattern = _pattern(name, floor, points[0, own], points[1, own], seconds)
        mix = 0.5 + contrast[own] * (pattern - 0.5)
        rgb[own] = light + mix[:, None] * (dark - light)


def _pattern(
    name: str, floor: Floor, x: np.ndarray, y: np.ndarray, seconds: float
) -> Float64[np.ndarray, " P"]:
    """0 where the ground is light, 1 where it is dark: stripes along, ripples, or tiles."""
    if name == "path":
        return np.asarray(np.floor(floor.beside_path(x, y) / 40) % 2)
    if name == "water":
        waves = np.sin(x / 31 + 2 * seconds) + np.sin((x + 2 * y) / 47 - 3 * seconds)
        return np.asarray(0.5 + 0.25 * waves)
    return np.asarray((np.floor(x / _TILE) + np.floor(y / _TILE)) % 2)


def _contrast(film: Film, cast: Cast) -> Float64[np.ndarray, "H W"]:
    """How far patterns show: where a pixel spans a good part of a tile the tones run together."""
    size = 2 * film.camera.half_width / film.width
    across = size * cast.depth if film.camera.projection == "perspective" else size
    return np.asarray(np.clip(1.3 - 2 * across / np.maximum(-_rise(film), 1e-3) / _TILE, 0, 1))


def _rise(film: Film) -> Float64[np.ndarray, "H W"]:
    """Sine of each ray's angle above the level."""
    direction = film.rays.direction
    rise = direction[2] / np.sqrt((direction**2).sum(axis=0))
    return np.broadcast_to(rise, (film.height, film.width))
