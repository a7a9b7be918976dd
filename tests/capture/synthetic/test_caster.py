"""The ray caster against the solids' own equations, sampled densely, and against matrices."""

import dataclasses
import math

import numpy as np
import pytest

from gc25d.capture.raw.classes import STENCIL
from gc25d.capture.synthetic.camera import Camera, Film
from gc25d.capture.synthetic.caster import FLOOR, cast, meet_floor
from gc25d.capture.synthetic.scene import Floor, Solid
from gc25d.capture.synthetic.shapes import Box, Capsule, Ellipsoid
from gc25d.geometry.camera import pixel_centers, project

EYE = Camera((0.0, 0.0, 170.0), -20.0, 30.0, 12.0, "perspective", 80.0, 10.0, math.inf)
PARALLEL = dataclasses.replace(EYE, projection="orthographic", span=500.0, far=3000.0)
CAMERAS = {"perspective": EYE, "orthographic": PARALLEL}
PLAIN = Floor(0.0, 1e5, 0.0, -1e6, 1.0, (1e6, 0.0), (1.0, 1.0))  # no path, no pool in sight

CENTRE = np.array([400.0, 230.0, 60.0])
LEANING = np.array([30.0, 60.0, 40.0])
SHAPES = {
    "box": Box(CENTRE, np.array([80.0, 40.0, 60.0]), 25.0),
    "ellipsoid": Ellipsoid(CENTRE, np.array([90.0, 60.0, 120.0])),
    "capsule": Capsule(CENTRE - LEANING, CENTRE + LEANING, 45.0),
    "sphere": Capsule(CENTRE, CENTRE, 70.0),
    "along the axis": Capsule(CENTRE, CENTRE + 200 * EYE.axes[0], 60.0),
}


def level(shape, points):
    """Below 0 inside the solid, 0 on its surface, above 0 outside; points are [..., 3]."""
    if isinstance(shape, Ellipsoid):
        return np.linalg.norm((points - shape.centre) / shape.radii, axis=-1) - 1
    if isinstance(shape, Capsule):
        axis = shape.end - shape.start
        share = np.clip((points - shape.start) @ axis / max(axis @ axis, 1e-9), 0, 1)
        return np.linalg.norm(points - shape.start - share[..., None] * axis, axis=-1) - (
            shape.radius
        )
    back = math.radians(-shape.yaw)
    turn = np.array([[math.cos(back), math.sin(back)], [-math.sin(back), math.cos(back)]])
    local = points - shape.centre
    local[..., :2] = local[..., :2] @ turn  # a point turned back by the box's yaw
    return (np.abs(local) - shape.half).max(axis=-1)


def on_film(camera, width=40, height=30):
    film = Film(camera, width, height)
    return film, film.rays


@pytest.mark.parametrize("projection", CAMERAS)
@pytest.mark.parametrize("name", SHAPES)
def test_depth_is_the_first_surface_point(projection, name):
    film, rays = on_film(CAMERAS[projection])
    shape = SHAPES[name]
    depth = shape.depth(rays)
    hit = np.isfinite(depth)
    assert 20 < hit.sum() < hit.size - 20
    surface = np.moveaxis(rays.at(np.where(hit, depth, 0.0)), 0, -1)
    np.testing.assert_allclose(level(shape, surface[hit]), 0, atol=1e-8)
    steps = np.arange(10.0, 1200.0, 1.0)
    along = np.stack([np.moveaxis(rays.at(np.full(depth.shape, t)), 0, -1) for t in steps])
    inside = level(shape, along) < 0
    first = np.where(inside.any(axis=0), steps[inside.argmax(axis=0)], np.inf)
    assert (first[~hit] == np.inf).all()
    assert (first[hit] >= depth[hit]).all()  # nothing before it
    long = hit & np.isfinite(first)
    assert (first[long] <= depth[long] + 1).all()
    box = film.outline(*shape.bounds())
    outside = np.ones_like(hit)
    outside[box] = False
    assert not hit[outside].any()
    assert outside.any()


@pytest.mark.parametrize("name", ["box", "ellipsoid", "capsule", "sphere"])
def test_normals_are_gradients(name):
    shape = SHAPES[name]
    _, rays = on_film(EYE, 24, 18)
    depth = shape.depth(rays)
    hit = np.isfinite(depth)
    points = rays.at(np.where(hit, depth, 0.0))[:, None, hit]
    normals = shape.normals(points)[:, 0].T
    at = points[:, 0].T
    gradient = np.stack(
        [level(shape, at + step) - level(shape, at - step) for step in 1e-4 * np.eye(3)], axis=-1
    )
    gradient /= np.linalg.norm(gradient, axis=-1, keepdims=True)
    np.testing.assert_allclose(normals, gradient, atol=1e-5)


def test_axes_by_hand():
    def axes(pitch, yaw, roll):
        camera = dataclasses.replace(EYE, pitch=pitch, yaw=yaw, roll=roll)
        return np.round(np.stack(camera.axes), 12).tolist()

    assert axes(0, 90, 0) == [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]  # turns right: forward is +Y
    assert axes(90, 0, 0) == [[0, 0, 1], [0, 1, 0], [-1, 0, 0]]  # looks up
    assert axes(0, 0, 90) == [[1, 0, 0], [0, 0, -1], [0, 1, 0]]  # leans right: right is down


def test_rays_by_hand():
    level_camera = dataclasses.replace(EYE, pitch=0.0, yaw=0.0, roll=0.0, span=90.0)
    rays = Film(level_camera, 4, 2).rays
    # 90°: half a width of 1 at a depth of 1; the pixel at the top right lies 0.75 right, 0.25 up
    np.testing.assert_allclose(rays.at(np.full((2, 4), 100.0))[:, 0, 3], [100, 75, 170 + 25])
    flat = dataclasses.replace(level_camera, projection="orthographic", span=400.0)
    rays = Film(flat, 4, 2).rays
    np.testing.assert_allclose(rays.at(np.full((2, 4), 100.0))[:, 0, 3], [100, 150, 170 + 50])


@pytest.mark.parametrize("projection", CAMERAS)
def test_rays_and_matrices_agree(projection):
    """Points of a pixel's ray project to its centre, the nearer with the greater depth."""
    film, rays = on_film(CAMERAS[projection])
    matrix = film.camera.world_to_clip(film.width, film.height)
    depths = []
    for distance in (10.0, 300.0, 2999.0):
        points = np.moveaxis(rays.at(np.full((film.height, film.width), distance)), 0, -1)
        pixels, depth = project(points, matrix, film.width, film.height)
        np.testing.assert_allclose(pixels, pixel_centers(film.width, film.height), atol=1e-9)
        depths.append(depth)
    np.testing.assert_allclose(depths[0], 1.0)  # near plane
    assert (np.diff(depths, axis=0) < 0).all()


def test_nearer_surfaces_hide_farther_ones():
    camera = Camera((0.0, 0.0, 100.0), 0.0, 0.0, 0.0, "perspective", 90.0, 10.0, math.inf)
    far_box = Solid(Box(np.array([500.0, 0, 100]), np.array([50.0, 200, 100]), 0.0), 5, (1, 1, 1))
    head = Solid(Capsule(*[np.array([300.0, 0, 100])] * 2, 30.0), 10, (1, 1, 1))
    behind = Solid(Box(np.array([-500.0, 0, 100]), np.array([50.0, 200, 100]), 0.0), 6, (1, 1, 1))
    for solids in ([far_box, head, behind], [behind, head, far_box]):
        seen = cast(Film(camera, 41, 41), PLAIN, solids)
        assert seen.sem_ids[20, 20] == 10
        assert seen.depth[20, 20] == pytest.approx(270)
        assert seen.sem_ids[20, 28] == 5
        assert seen.depth[20, 28] == pytest.approx(450)
        assert (seen.sem_ids[0, 0], seen.depth[0, 0]) == (STENCIL["sky"], math.inf)
        # 20 of 20.5 below the middle: the ground lies 100 down and so 102.5 ahead
        assert (seen.sem_ids[40, 20], seen.surface[40, 20]) == (STENCIL["ground"], FLOOR)
        assert seen.depth[40, 20] == pytest.approx(102.5)
        assert seen.stencil[20, 20] == STENCIL["player"]
        assert not (seen.sem_ids == 6).any()


@pytest.mark.parametrize("projection", CAMERAS)
def test_ground_points_lie_on_the_plane_and_on_the_ray(projection):
    rays = on_film(CAMERAS[projection])[1]
    xy, hit, depth = meet_floor(rays, 20.0)
    points = np.moveaxis(rays.at(depth), 0, -1)
    np.testing.assert_allclose(points[hit][:, 2], 20.0)
    np.testing.assert_allclose(points[hit][:, :2], xy[:, hit].T)
    downward = np.broadcast_to(rays.direction[2] < 0, hit.shape)
    assert not hit[~downward].any()
    assert hit.any()


def test_floor_classes():
    floor = Floor(0.0, 1000.0, math.radians(90), 50.0, 20.0, (400.0, -300.0), (100.0, 50.0))
    # the path runs along Y; to the right of +Y lies −X: its middle line is x = −50
    points = {
        (-50, 700): "path", (-69, 0): "path", (-71, 0): "ground", (-29, 0): "ground",
        (499, -300): "water", (400, -349): "water", (480, -340): "ground",
        (1001, 0): "sky", (999, 999): "ground",
    }  # fmt: skip
    x, y = np.array(list(points), float).T
    assert floor.classes(x, y).tolist() == [STENCIL[name] for name in points.values()]
