import math

import numpy as np
import pytest

from gc25d.geometry.camera import (
    look,
    orthographic,
    perspective,
    pixel_centers,
    project,
    rotator_axes,
    unproject_rays,
)
from gc25d.geometry.ground import ground_matrix, ground_plane, ground_points

EYE = np.array([50.0, -30, 160])


def test_straight_ahead_by_hand():
    # eye 160 cm up, 90° across 200 pixels: focal length 100. A pixel 40 below the middle looks
    # down by 40 in 100, so it meets the ground 400 cm ahead, 0.2 · 400 = 80 cm to the right.
    camera = look(EYE, rotator_axes(0, 0, 0)) @ perspective(90, 2, 10)
    xy, hit = ground_points(camera, np.array([120.0, 90]), 0, 200, 100)
    assert bool(hit)
    np.testing.assert_allclose(xy, [50 + 400, -30 + 80])


def test_horizon_and_sky_do_not_hit():
    camera = look(EYE, rotator_axes(0, 0, 0)) @ perspective(90, 2, 10)
    pixels = np.array([[100.0, 49.5], [100, 10], [100, 50.5]])
    xy, hit = ground_points(camera, pixels, 0, 200, 100)
    assert hit.tolist() == [False, False, True]
    np.testing.assert_array_equal(xy[:2], 0)


@pytest.mark.parametrize("far", [4000.0, math.inf])
def test_agrees_with_the_rays_of_a_tilted_camera(far):
    cameras = np.stack(
        [
            look(EYE, rotator_axes(pitch, yaw, 12)) @ perspective(80, 1.6, 10, far)
            for pitch, yaw in ((-30, 75), (5, -160))
        ]
    )
    pixels = pixel_centers(32, 20)
    xy, hit = ground_points(cameras[:, None, None], pixels[None], -25.0, 32, 20)
    origins, directions = unproject_rays(cameras[:, None, None], pixels[None], 32, 20)
    along = (-25.0 - origins[..., 2]) / directions[..., 2]
    np.testing.assert_array_equal(hit, along > 0)
    expected = (origins + along[..., None] * directions)[..., :2]
    np.testing.assert_allclose(xy[hit], expected[hit], rtol=1e-7, atol=1e-6)
    assert 0 < hit.mean() < 1


def test_orthographic_looking_down_and_level():
    down = look(np.array([0, 0, 500.0]), rotator_axes(-90, 0, 0)) @ orthographic(400, 200, 1, 900)
    xy, hit = ground_points(down, np.array([[0.0, 0], [400, 200]]), 0, 400, 200)
    assert hit.all()
    np.testing.assert_allclose(xy, [[100, -200], [-100, 200]], atol=1e-9)
    level = look(np.array([0, 0, 500.0]), rotator_axes(0, 0, 0)) @ orthographic(400, 200, 1, 900)
    assert not ground_points(level, np.array([[0.0, 0], [400, 200]]), 0, 400, 200)[1].any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("yaw", [0, 37, 90, -143.3])
def test_orthographic_camera_parallel_to_the_ground_hits_nothing(yaw, dtype):
    """Rounding leaves its determinant tiny, not zero; so does a half turn about its own axis."""
    lens = orthographic(400, 200, 1, 9000)
    place = np.array([1234.5, -678.9, 500.0])
    pixels = pixel_centers(40, 20)
    for roll in (0, 33, 90, 180):
        for pitch in (0, 180):
            camera = look(place, rotator_axes(pitch, yaw, roll)) @ lens
            rounded = camera.astype(dtype).astype(np.float64)
            assert not ground_matrix(rounded, 0, 40, 20).any()
            assert not ground_points(rounded, pixels, 0, 40, 20)[1].any()


@pytest.mark.parametrize("pitch", [-0.01, -1.0])
def test_slightly_tilted_orthographic_camera_far_from_the_origin_hits(pitch):
    axes = rotator_axes(pitch, 20, 0)
    place = np.array([3e5, -2e5, 10.0])
    camera = look(place, axes) @ orthographic(400, 10, 1, 1e6)
    xy, hit = ground_points(camera, np.array([200.0, 100]), 0, 400, 200)
    assert bool(hit)
    reach = 10 / math.tan(math.radians(-pitch))
    heading = math.radians(20)
    expected = place[:2] + reach * np.array([math.cos(heading), math.sin(heading)])
    np.testing.assert_allclose(xy, expected, atol=1e-3 * reach)


def test_low_perspective_camera_far_from_the_origin_hits():
    place = np.array([3e6, -2e6, 10.0])  # 10 cm above the ground, 36 km away
    camera = look(place, rotator_axes(0, 0, 0)) @ perspective(90, 2, 10)
    xy, hit = ground_points(camera, np.array([100.0, 60]), 0, 200, 100)
    assert bool(hit)
    np.testing.assert_allclose(xy, [3e6 + 100, -2e6], atol=0.01)


def test_plane_behind_the_near_plane_is_no_hit():
    above = look(np.array([0, 0, 500.0]), rotator_axes(-90, 0, 0)) @ orthographic(400, 200, 1, 900)
    assert not ground_points(above, np.array([200.0, 100]), 600, 400, 200)[1]


def test_eye_in_the_plane_hits_nothing():
    camera = look(EYE, rotator_axes(0, 0, 0)) @ perspective(90, 2, 10)
    xy, hit = ground_points(camera, pixel_centers(20, 10), 160, 20, 10)
    assert not hit.any()
    assert np.isfinite(xy).all()


def test_matrix_projects_back():
    camera = look(EYE, rotator_axes(-20, 33, 0)) @ perspective(90, 2, 10)
    x, y, q, depth = np.array([130.0, 80, 1]) @ ground_matrix(camera, 7, 200, 100)
    pixel, expected_depth = project(np.array([x / q, y / q, 7]), camera, 200, 100)
    np.testing.assert_allclose(pixel, [130, 80])
    np.testing.assert_allclose(depth, expected_depth)


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ((12.0, 99.0), 12.0),
        ((math.nan, 1.0, 9.0, 2.0, math.nan), 2.0),
        ((math.nan,), None),
        ((), None),
    ],
)
def test_ground_plane(heights, expected):
    assert ground_plane(heights) == expected
