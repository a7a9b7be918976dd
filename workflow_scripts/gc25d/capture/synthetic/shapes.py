"""Solids that rays are cast against: boxes, ellipsoids and capsules, with their normals.

`depth` gives the ray parameter of the first surface point beyond the near plane, infinite where
there is none; a solid that reaches through the near plane is open there, as in a rasteriser.
Vectors are [3, rows, columns].
"""

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from jaxtyping import Float64

from gc25d.capture.synthetic.camera import Rays, Vectors

Point: TypeAlias = Float64[np.ndarray, "3"]
Depths: TypeAlias = Float64[np.ndarray, "rows columns"]
_TINY = 1e-300  # stands for a direction of 0: the quotient stays finite and beyond all others


class Shape(Protocol):
    """A convex solid."""

    def bounds(self) -> tuple[Point, Point]:
        """Lowest and highest corner of the world box around it, cm."""
        ...

    def depth(self, rays: Rays) -> Depths:
        """Ray parameter of each ray's entry; infinite where it misses."""
        ...

    def normals(self, points: Vectors) -> Vectors:
        """Unit normals at surface points."""
        ...


@dataclass(frozen=True)
class Box:
    """A box that stands upright, turned about Z."""

    centre: Point
    half: Point
    """Half its sides before turning, cm."""
    yaw: float
    """Degrees, from X towards Y."""

    def bounds(self) -> tuple[Point, Point]:
        """Lowest and highest corner of the world box around it, cm."""
        reach = np.abs(self._turn).T @ self.half
        return self.centre - reach, self.centre + reach

    def depth(self, rays: Rays) -> Depths:
        """Slab method in the box's own axes."""
        half = _column(self.half)
        origin = _map(self._turn, rays.origin - _column(self.centre))
        direction = _map(self._turn, rays.direction)
        direction = np.where(direction == 0, _TINY, direction)
        first, second = (-half - origin) / direction, (half - origin) / direction
        enter = np.minimum(first, second).max(axis=0)
        leave = np.maximum(first, second).min(axis=0)
        return np.where((enter <= leave) & (enter >= rays.near), enter, np.inf)

    def normals(self, points: Vectors) -> Vectors:
        """The axis along which a point lies furthest out."""
        local = _map(self._turn, points - _column(self.centre)) / _column(self.half)
        face = np.abs(local) == np.abs(local).max(axis=0)
        return _unit(_map(self._turn.T, np.sign(local) * face))

    @property
    def _turn(self) -> Float64[np.ndarray, "3 3"]:
        """World → own axes."""
        c, s = math.cos(math.radians(self.yaw)), math.sin(math.radians(self.yaw))
        return np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class Ellipsoid:
    """An ellipsoid along the world's axes."""

    centre: Point
    radii: Point
    """cm."""

    def bounds(self) -> tuple[Point, Point]:
        """Lowest and highest corner of the world box around it, cm."""
        return self.centre - self.radii, self.centre + self.radii

    def depth(self, rays: Rays) -> Depths:
        """A unit sphere after scaling each axis by its radius."""
        radii = _column(self.radii)
        origin, direction = (rays.origin - _column(self.centre)) / radii, rays.direction / radii
        return _first_root(
            _dot(direction, direction),
            _dot(origin, direction),
            _dot(origin, origin) - 1,
            rays.near,
        )

    def normals(self, points: Vectors) -> Vectors:
        """Gradient of the implicit surface."""
        return _unit((points - _column(self.centre)) / _column(self.radii**2))


@dataclass(frozen=True)
class Capsule:
    """All points within a radius of a segment."""

    start: Point
    end: Point
    radius: float

    def bounds(self) -> tuple[Point, Point]:
        """Lowest and highest corner of the world box around it, cm."""
        low, high = np.minimum(self.start, self.end), np.maximum(self.start, self.end)
        return low - self.radius, high + self.radius

    def depth(self, rays: Rays) -> Depths:
        """First of the tube (across its axis a circle, between its ends) and both end spheres."""
        along, length = self._axis()
        origin = rays.origin - _column(self.start)
        origin_along, direction_along = _dot(origin, along), _dot(rays.direction, along)
        tube = self._round(origin - origin_along * along, rays.direction - direction_along * along)
        depth = _first_root(*tube, rays.near)
        reached = origin_along + np.where(np.isinf(depth), 0.0, depth) * direction_along
        depth = np.where((reached >= 0) & (reached <= length), depth, np.inf)
        for centre in (self.start, self.end):
            ball = self._round(rays.origin - _column(centre), rays.direction)
            depth = np.minimum(depth, _first_root(*ball, rays.near))
        return depth

    def normals(self, points: Vectors) -> Vectors:
        """Away from the nearest point of the segment."""
        along, length = self._axis()
        offset = points - _column(self.start)
        return _unit(offset - np.clip(_dot(offset, along), 0, length) * along)

    def _axis(self) -> tuple[Vectors, float]:
        """Unit direction [3, 1, 1] (zero for a sphere) and length of the segment."""
        axis = self.end - self.start
        length = float(np.linalg.norm(axis))
        return _column(axis / max(length, _TINY)), length

    def _round(self, origin: Vectors, direction: Vectors) -> tuple[Depths, Depths, Depths]:
        """Coefficients of |origin + t·direction| = radius."""
        constant = _dot(origin, origin) - self.radius**2
        return _dot(direction, direction), _dot(origin, direction), constant


def _first_root(a: Depths, b: Depths, c: Depths, near: float) -> Depths:
    """Smaller root of a·t² + 2b·t + c; infinite where there is none from `near` on."""
    inside = b * b - a * c
    real = (inside >= 0) & (a > 0)
    root = (-b - np.sqrt(np.where(real, inside, 0.0))) / np.where(real, a, 1.0)
    return np.where(real & (root >= near), root, np.inf)


def _dot(first: Vectors, second: Vectors) -> np.ndarray:
    return np.asarray(first[0] * second[0] + first[1] * second[1] + first[2] * second[2])


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.sqrt(_dot(vectors, vectors)))


def _map(matrix: np.ndarray, vectors: Vectors) -> Vectors:
    return np.asarray(np.tensordot(matrix, vectors, axes=1))


def _column(vector: np.ndarray) -> Vectors:
    return vector[:, None, None]
