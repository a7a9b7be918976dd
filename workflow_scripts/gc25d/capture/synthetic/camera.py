"""Cameras of the ray caster: a pose and a lens, and the rays of their pixels.

Rays are formed from the camera's position, axes and field of view, not from a matrix, so that they
check the matrices that `geometry.camera` builds. Vectors have their components first: [3, rows,
columns], or an axis of 1 where all rays agree. Rays are as long as one unit of depth: a ray's
parameter is the distance along the camera's forward axis, in cm, for both projections.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float64

from gc25d.geometry.camera import look, orthographic, perspective, rotator_axes

Projection: TypeAlias = Literal["perspective", "orthographic"]
Vectors: TypeAlias = Float64[np.ndarray, "3 rows columns"]
PixelBox: TypeAlias = tuple[slice, slice]
"""Rows and columns of a picture."""

_CORNERS = np.array(list(product((0, 1), repeat=3)))


@dataclass(frozen=True)
class Camera:
    """Where a camera stands and what its lens sees."""

    position: tuple[float, float, float]
    """cm."""
    pitch: float
    """Degrees; positive looks up."""
    yaw: float
    """Degrees; positive turns right."""
    roll: float
    """Degrees; positive leans to the right."""
    projection: Projection
    span: float
    """Perspective: horizontal field of view, degrees. Orthographic: width of the picture, cm."""
    near: float
    """cm."""
    far: float
    """cm; infinite for a perspective camera that sees without limit."""

    @cached_property
    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """World directions of forward, right and up: turned by yaw, then tilted, then rolled."""
        pitch, yaw, roll = np.radians([self.pitch, self.yaw, self.roll])
        level = np.array([math.cos(yaw), math.sin(yaw), 0.0])
        right = np.array([-math.sin(yaw), math.cos(yaw), 0.0])
        up = np.array([0.0, 0.0, 1.0])
        forward = math.cos(pitch) * level + math.sin(pitch) * up
        up = math.cos(pitch) * up - math.sin(pitch) * level
        leaning = math.cos(roll) * right - math.sin(roll) * up
        up = math.cos(roll) * up + math.sin(roll) * right
        return forward, leaning, up

    @property
    def half_width(self) -> float:
        """Half the width seen: at a depth of 1 cm (perspective) or at any (orthographic), cm."""
        if self.projection == "perspective":
            return math.tan(math.radians(self.span) / 2)
        return self.span / 2

    def world_to_clip(self, width: int, height: int) -> Float64[np.ndarray, "4 4"]:
        """The matrix that a raw run stores, for a picture of `width` × `height` square pixels."""
        view = look(np.array(self.position), rotator_axes(self.pitch, self.yaw, self.roll))
        if self.projection == "perspective":
            lens = perspective(self.span, width / height, self.near, self.far)
        else:
            lens = orthographic(self.span, self.span * height / width, self.near, self.far)
        return np.asarray(view @ lens)


@dataclass(frozen=True)
class Rays:
    """The rays of a box of pixels; `origin` or `direction` is one for all."""

    origin: Vectors
    direction: Vectors
    near: float
    far: float

    def within(self, box: PixelBox) -> "Rays":
        """The rays of a smaller box."""
        origin, direction = (
            vectors if vectors.shape[1:] == (1, 1) else vectors[:, *box]
            for vectors in (self.origin, self.direction)
        )
        return Rays(origin, direction, self.near, self.far)

    def at(self, depth: Float64[np.ndarray, "rows columns"]) -> Vectors:
        """World points at a depth, cm."""
        return np.asarray(self.origin + depth * self.direction)


@dataclass(frozen=True)
class Film:
    """A camera and the size of its picture."""

    camera: Camera
    width: int
    height: int

    @cached_property
    def rays(self) -> Rays:
        """Rays through the centres of all pixels."""
        x = (np.arange(self.width) + 0.5) / self.width * 2 - 1
        y = 1 - (np.arange(self.height) + 0.5) / self.height * 2
        half = self.camera.half_width
        forward, right, up = (axis[:, None, None] for axis in self.camera.axes)
        aside = half * x * right + (half * self.height / self.width * y)[:, None] * up
        position = np.array(self.camera.position)[:, None, None]
        near, far = self.camera.near, self.camera.far
        if self.camera.projection == "perspective":
            return Rays(position, forward + aside, near, far)
        return Rays(position + aside, forward, near, far)

    def outline(self, low: np.ndarray, high: np.ndarray) -> PixelBox | None:
        """The pixels that may see a world box from `low` to `high` (cm); None when none does."""
        corners = low + _CORNERS * (high - low)
        depth, x, y = np.stack(self.camera.axes) @ (corners - self.camera.position).T
        camera = self.camera
        if depth.max() < camera.near or depth.min() > camera.far:
            return None
        scale = np.full(8, camera.half_width)
        if camera.projection == "perspective":
            if depth.min() < camera.near:  # it reaches behind the camera and has no outline
                return slice(0, self.height), slice(0, self.width)
            scale *= depth
        u = (x / scale + 1) * self.width / 2
        v = self.height / 2 - y / scale * self.width / 2
        rows, columns = _within(v, self.height), _within(u, self.width)
        empty = rows.start >= rows.stop or columns.start >= columns.stop
        return None if empty else (rows, columns)


def _within(places: np.ndarray, size: int) -> slice:
    first, last = np.clip([np.floor(places.min()), np.ceil(places.max())], 0, size)
    return slice(int(first), int(last))
