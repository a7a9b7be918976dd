"""The world of a synthetic run: an island of ground with a path, a pool, and solids on it."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8

from gc25d.capture.raw.classes import STENCIL
from gc25d.capture.synthetic.shapes import Box, Ellipsoid, Shape

Color = tuple[float, float, float]
"""Red, green and blue in 0..1."""

ROAM = 1000.0
"""Characters stay within this distance of the middle, cm. What is taller than a camera's height
stands further out than a camera that follows them."""

_PLACES = 12  # around the rim: structures and foliage by turns
_WALLS: tuple[Color, ...] = ((0.62, 0.58, 0.53), (0.55, 0.43, 0.38), (0.70, 0.66, 0.58))
_LEAVES: tuple[Color, ...] = ((0.18, 0.42, 0.16), (0.26, 0.48, 0.15), (0.15, 0.36, 0.22))
_CRATES: tuple[Color, ...] = ((0.66, 0.45, 0.22), (0.60, 0.30, 0.20), (0.48, 0.48, 0.55))


@dataclass(frozen=True)
class Solid:
    """A shape, what it is and what it looks like."""

    shape: Shape
    sem_id: int
    """Static class, or part of a character."""
    color: Color


@dataclass(frozen=True)
class Obstacle:
    """A circle on the ground that characters walk around, cm."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Floor:
    """The ground: a square island in the void, with a straight path and an elliptic pool (cm)."""

    z: float
    half_side: float
    path_heading: float
    """Radians, from X towards Y."""
    path_offset: float
    """Distance of the path's middle line from the origin."""
    path_half_width: float
    pool: tuple[float, float]
    pool_radii: tuple[float, float]

    def classes(
        self, x: Float64[np.ndarray, "*shape"], y: Float64[np.ndarray, "*shape"]
    ) -> UInt8[np.ndarray, "*shape"]:
        """Static class of the ground at world points; beyond the island it is the void."""
        found = np.full(x.shape, STENCIL["ground"], np.uint8)
        found[np.abs(self.beside_path(x, y)) <= self.path_half_width] = STENCIL["path"]
        across, along = ((x - self.pool[0]) / self.pool_radii[0]), (y - self.pool[1])
        found[across**2 + (along / self.pool_radii[1]) ** 2 <= 1] = STENCIL["water"]
        found[np.maximum(np.abs(x), np.abs(y)) > self.half_side] = STENCIL["sky"]
        return found

    def beside_path(
        self, x: Float64[np.ndarray, "*shape"], y: Float64[np.ndarray, "*shape"]
    ) -> Float64[np.ndarray, "*shape"]:
        """Signed distance from the path's middle line, cm."""
        sine, cosine = math.sin(self.path_heading), math.cos(self.path_heading)
        return np.asarray(cosine * y - sine * x - self.path_offset)


@dataclass(frozen=True)
class Scene:
    """Everything that does not move."""

    floor: Floor
    solids: tuple[Solid, ...]
    obstacles: tuple[Obstacle, ...]

    def clear(self, x: float, y: float, reach: float) -> bool:
        """Whether a character `reach` cm wide may stand at (x, y)."""
        return math.hypot(x, y) <= ROAM and all(
            math.hypot(x - thing.x, y - thing.y) > thing.radius + reach for thing in self.obstacles
        )


def build_scene(generator: np.random.Generator, ground_z: float) -> Scene:
    """Place everything; equal generators give equal scenes."""
    floor = _floor(generator, ground_z)
    solids: list[Solid] = []
    obstacles: list[Obstacle] = []
    for number in range(_PLACES):
        heading = (number + generator.uniform(-0.3, 0.3)) * 2 * math.pi / _PLACES
        place = _polar(heading, generator.uniform(1650, 2100))
        solids.append((_structure, _foliage)[number % 2](generator, *place, ground_z))
    for number in range(10):
        x, y = _polar(generator.uniform(0, 2 * math.pi), generator.uniform(320, 1150))
        solids.append((_crate, _bush)[number % 2](generator, x, y, ground_z))
        obstacles.append(Obstacle(x, y, 90.0))
    return Scene(floor, tuple(solids), tuple(obstacles))


def _floor(generator: np.random.Generator, z: float) -> Floor:
    return Floor(
        z=z,
        half_side=6000.0,
        path_heading=generator.uniform(0, 2 * math.pi),
        path_offset=generator.uniform(-250, 250),
        path_half_width=generator.uniform(70, 120),
        pool=_polar(generator.uniform(0, 2 * math.pi), generator.uniform(450, 900)),
        pool_radii=(generator.uniform(220, 420), generator.uniform(220, 420)),
    )


def _structure(generator: np.random.Generator, x: float, y: float, z: float) -> Solid:
    half = generator.uniform([110, 60, 90], [260, 150, 240])
    return _box(generator, (x, y, z), half, "structure", _WALLS)


def _crate(generator: np.random.Generator, x: float, y: float, z: float) -> Solid:
    half = generator.uniform([30, 30, 25], [60, 60, 55])
    return _box(generator, (x, y, z), half, "prop", _CRATES)


def _foliage(generator: np.random.Generator, x: float, y: float, z: float) -> Solid:
    """A hedge or a tree's crown that reaches the ground."""
    if generator.random() < 0.3:
        half = generator.uniform([150, 40, 50], [300, 60, 90])
        return _box(generator, (x, y, z), half, "foliage", _LEAVES)
    return _ellipsoid((x, y, z), generator.uniform([90, 90, 130], [170, 170, 240]), generator)


def _bush(generator: np.random.Generator, x: float, y: float, z: float) -> Solid:
    return _ellipsoid((x, y, z), generator.uniform([45, 45, 30], [85, 85, 60]), generator)


def _box(
    generator: np.random.Generator,
    foot: tuple[float, float, float],
    half: np.ndarray,
    name: str,
    colors: tuple[Color, ...],
) -> Solid:
    centre = np.add(foot, [0, 0, half[2]])
    shape = Box(centre, half, generator.uniform(0, 180))
    return Solid(shape, STENCIL[name], colors[generator.integers(len(colors))])


def _ellipsoid(
    foot: tuple[float, float, float], radii: np.ndarray, generator: np.random.Generator
) -> Solid:
    centre = np.add(foot, [0, 0, 0.8 * radii[2]])
    color = _LEAVES[generator.integers(len(_LEAVES))]
    return Solid(Ellipsoid(centre, radii), STENCIL["foliage"], color)


def _polar(heading: float, distance: float) -> tuple[float, float]:
    return distance * math.cos(heading), distance * math.sin(heading)
