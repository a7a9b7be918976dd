import numpy as np
import pytest

from gc25d.capture.doom.floorplan import Floorplan
from gc25d.capture.doom.stencil import Flats, classify_flats, stencil_of
from gc25d.capture.doom.wad import MapPlan
from gc25d.capture.doom.world import CM, CM_UP, Pose, camera, horizontal_fov
from gc25d.capture.raw.classes import STENCIL
from gc25d.geometry.camera import project

WIDTH, HEIGHT = 32, 24
GROUND, WATER, SKY, STRUCTURE = (STENCIL[n] for n in ("ground", "water", "sky", "structure"))


def plan(floors, ceilings):
    return MapPlan(floors, ceilings, np.zeros((0, 4)), np.zeros((0, 2), np.int64))


def test_classes_by_texture():
    floorplan = Floorplan((0.0, 0.0), 1.0, np.zeros((1, 1), np.int32))
    flats = classify_flats(
        plan(("NUKAGE3", "FLAT1", "LAVA1"), ("F_SKY1", "CEIL4_1", "")), floorplan
    )
    assert flats.floors.tolist() == [WATER, GROUND, WATER]
    assert flats.ceilings.tolist() == [SKY, STRUCTURE, STRUCTURE]


def stencil(labels, objects, flats, heights, eye=41.0):
    matrix = camera(Pose(10.0, 50, eye, 0, 90), WIDTH, HEIGHT)
    return stencil_of(np.asarray(labels, np.uint8), objects, flats, heights, matrix, eye)


def test_labels():
    flats = Flats(
        Floorplan((0.0, 0.0), 1.0, np.zeros((100, 100), np.int32)),
        np.array([GROUND], np.uint8),
        np.array([SKY], np.uint8),
    )
    labels = np.ones((HEIGHT, WIDTH))
    labels[11:13] = 0
    labels[10, :5] = 40, 41, 42, 43, 255
    objects = {40: "Monster", 41: "Gore", 42: "Health", 43: "Self", 255: "Self"}
    found = stencil(labels, objects, flats, [(0.0, 128.0)])
    boss, prop, player = STENCIL["boss"], STENCIL["prop"], STENCIL["player"]
    assert found[10, :5].tolist() == [boss, prop, prop, prop, player]
    assert (found[11:13] == STRUCTURE).all()
    assert (found[13:] == GROUND).all()
    assert (found[:10] == SKY).all()


def test_a_lower_pool_is_seen_beyond_the_edge_of_the_ground():
    # The ground ends 50 ahead of the eye, 21 above it; beyond it lies a pool 20 lower. With a focal
    # length of 16 px and heights stretched by 1.2, a ray v px below the middle (row 12) meets the
    # ground's plane at 16 · 1.2 · 21 / v = 403 / v and the pool's at 787 / v.
    sectors = np.zeros((100, 400), np.int32)
    sectors[:, 60:] = 1
    flats = Flats(
        Floorplan((0.0, 0.0), 1.0, sectors),
        np.array([GROUND, WATER], np.uint8),
        np.full(2, STRUCTURE, np.uint8),
    )
    found = stencil(np.ones((HEIGHT, WIDTH)), {}, flats, [(0.0, 128.0), (-20.0, 128.0)], eye=21.0)
    column = found[:, WIDTH // 2]
    assert (column[:12] == STRUCTURE).all()
    assert (column[14:20] == WATER).all()  # v = 2.5 … 7.5: past the edge, in the pool
    assert (column[20:] == GROUND).all()  # v ≥ 8.5: 47 and nearer


def test_two_ceilings_of_one_height_are_told_apart():
    sectors = np.zeros((100, 100), np.int32)
    sectors[:, 60:] = 1
    flats = Flats(
        Floorplan((0.0, 0.0), 1.0, sectors),
        np.array([GROUND, GROUND], np.uint8),
        np.array([STRUCTURE, SKY], np.uint8),
    )
    found = stencil(np.ones((HEIGHT, WIDTH)), {}, flats, [(0.0, 61.0), (0.0, 61.0)])
    # the ceiling is 20 above the eye; its border, 50 ahead, is 16 · 1.2 · 20 / 50 = 7.68 px above
    # the middle (row 12): rows 0..3 lie nearer (their centres ≥ 8.5 px up), rows 5..7 beyond
    column = found[:, WIDTH // 2]
    assert (column[:4] == STRUCTURE).all()
    assert (column[5:8] == SKY).all()


def test_camera_axes_and_scale():
    matrix = camera(Pose(100.0, 200, 41, 90, 90), 320, 240)  # looks north: our −Y
    ahead, left = np.array([[100.0, 300, 41], [0, 300, 41]]) * [CM, -CM, CM_UP]
    below = np.array([100, 300, 0]) * [CM, -CM, CM_UP]
    pixels, _ = project(np.stack([ahead, left, below]), matrix, 320, 240)
    np.testing.assert_allclose(pixels, [[160, 120], [0, 120], [160, 198.72]], atol=1e-9)


@pytest.mark.parametrize(
    ("size", "tangent"), [((320, 240), 1), ((640, 360), 4 / 3), ((320, 200), 1.2), ((320, 256), 1)]
)
def test_wide_pictures_see_more(size, tangent):
    found = np.tan(np.radians(horizontal_fov(90, *size)) / 2)
    np.testing.assert_allclose(found, tangent)
