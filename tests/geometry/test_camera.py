import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from gc25d.errors import UserError
from gc25d.geometry.camera import (
    camera_fault,
    look,
    orthographic,
    perspective,
    pixel_centers,
    project,
    quaternion_axes,
    rotator_axes,
    unproject_rays,
)

AHEAD = rotator_axes(0, 0, 0)


def camera(position=(0, 0, 0), axes=AHEAD, fov=90.0, aspect=2.0, near=10.0, far=math.inf):
    return look(np.array(position, float), axes) @ perspective(fov, aspect, near, far)


@pytest.mark.parametrize(
    ("rotator", "forward", "right", "up"),
    [
        ((0, 90, 0), (0, 1, 0), (-1, 0, 0), (0, 0, 1)),  # yaw 90: forward becomes right
        ((90, 0, 0), (0, 0, 1), (0, 1, 0), (-1, 0, 0)),  # pitch 90: forward becomes up
        ((0, 0, 90), (1, 0, 0), (0, 0, -1), (0, 1, 0)),  # roll 90: right goes down, up goes right
    ],
)
def test_quarter_turns_of_an_unreal_rotator(rotator, forward, right, up):
    np.testing.assert_allclose(rotator_axes(*rotator), [forward, right, up], atol=1e-12)


def test_forward_of_a_general_rotator_is_the_stated_formula():
    pitch, yaw = math.radians(20), math.radians(-130)
    expected = [
        math.cos(pitch) * math.cos(yaw),
        math.cos(pitch) * math.sin(yaw),
        math.sin(pitch),
    ]
    axes = rotator_axes(20, -130, 70)
    np.testing.assert_allclose(axes[0], expected, atol=1e-12)
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)


def test_quaternion_order_is_scalar_last():
    np.testing.assert_allclose(quaternion_axes(np.array([0, 0, 0, 2.0])), np.eye(3), atol=1e-12)
    half_turn_about_x = quaternion_axes(np.array([1.0, 0, 0, 0]))
    np.testing.assert_allclose(half_turn_about_x, np.diag([1, -1, -1]), atol=1e-12)
    quarter_yaw = quaternion_axes(np.array([0, 0, math.sqrt(0.5), math.sqrt(0.5)]))
    np.testing.assert_allclose(quarter_yaw, rotator_axes(0, 90, 0), atol=1e-12)


def test_quaternion_agrees_with_scipy():
    xyzw = np.array([0.3, -0.5, 0.2, 0.7])
    expected = Rotation.from_quat(xyzw).as_matrix().T  # scipy's columns are the rotated axes
    np.testing.assert_allclose(quaternion_axes(xyzw), expected, atol=1e-12)


@pytest.mark.parametrize("bad", [[0, 0, 0, 0], [math.nan, 0, 0, 1]])
def test_no_rotation_is_refused(bad):
    with pytest.raises(UserError, match="is no rotation: expected"):
        quaternion_axes(np.array(bad, float))


def test_one_metre_ahead_right_and_up():
    points = np.array([[100.0, 0, 0], [100, 100, 0], [100, 0, 50]])
    pixels, depth = project(points, camera(), 200, 100)
    # 90° across 200 pixels: 45° to the right is the right edge, tan = 1/2 up is the top edge
    np.testing.assert_allclose(pixels, [[100, 50], [200, 50], [100, 0]], atol=1e-9)
    np.testing.assert_allclose(depth, 10 / 100)


@pytest.mark.parametrize("far", [1000.0, math.inf])
def test_depth_is_reversed(far):
    points = np.array([[10.0, 3, 2], [min(far, 1e9), 0, 0], [-5, 0, 0]])
    _, depth = project(points, camera(far=far), 200, 100)
    np.testing.assert_allclose(depth, [1, 0, math.nan], atol=1e-7)


def test_orthographic_keeps_sizes():
    matrix = look(np.zeros(3), AHEAD) @ orthographic(400, 200, 10, 1010)
    pixels, depth = project(np.array([[10.0, 100, 50], [1010, 100, 50]]), matrix, 800, 400)
    np.testing.assert_allclose(pixels, [[600, 100], [600, 100]])
    np.testing.assert_allclose(depth, [1, 0], atol=1e-12)


@pytest.mark.parametrize("far", [2000.0, math.inf])
@pytest.mark.parametrize("kind", ["perspective", "orthographic"])
def test_rays_pass_through_what_projects_there(kind, far):
    clip = (
        perspective(70, 1.5, 10, far)
        if kind == "perspective"
        else orthographic(900, 600, 10, min(far, 5e3))
    )
    axes = rotator_axes(-15, 40, 5)
    matrix = look(np.array([30.0, -20, 150]), axes) @ clip
    points = np.array([30.0, -20, 150]) + np.array([[500, 60, -40], [900, -200, 100]]) @ axes
    pixels, _ = project(points, matrix, 300, 200)
    origins, directions = unproject_rays(matrix, pixels, 300, 200)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=-1), 1)
    assert ((directions @ axes[0]) > 0).all()
    off = np.cross(points - origins, directions)
    np.testing.assert_allclose(off, 0, atol=1e-6)


def test_pixel_centres_lie_half_a_pixel_in():
    centres = pixel_centers(4, 2)
    assert centres.shape == (2, 4, 2)
    np.testing.assert_allclose(centres[1, 3], [3.5, 1.5])


LENSES = {
    "perspective": perspective(75.0, 1.5, 10.0),
    "perspective with a far plane": perspective(75.0, 1.5, 10.0, 5000.0),
    "orthographic": orthographic(300.0, 200.0, 10.0, 5000.0),
}


@pytest.mark.parametrize("lens", LENSES)
def test_cameras_turned_anywhere_have_no_fault(lens):
    random = np.random.default_rng(0)
    for _ in range(50):
        axes = rotator_axes(*random.uniform(-180, 180, 3))
        world_to_clip = look(random.uniform(-1e6, 1e6, 3), axes) @ LENSES[lens]
        assert camera_fault(world_to_clip) == ""
        shift = np.eye(4)  # a crop away from the centre
        shift[3, :2] = random.uniform(-2, 2, 2)
        assert camera_fault(world_to_clip @ shift) == ""


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (-np.eye(4), "w below 0 in front of it: its matrix is negated"),
        (np.diag([1.0, 1, 1, 0]), "singular"),
        (np.diag([-1.0, 1, 1, 1]), "is mirrored"),  # left and right exchanged
        (np.diag([1.0, -1, 1, 1]), "is mirrored"),  # v counted upwards
    ],
)
def test_negated_and_mirrored_cameras_are_told(lens, change, said):
    world_to_clip = look(np.array([300.0, -20, 90]), rotator_axes(10, 40, 5)) @ LENSES[lens]
    assert said in camera_fault(world_to_clip @ change)


def test_a_depth_of_1_far_away_is_told():
    for lens in ("perspective with a far plane", "orthographic"):
        world_to_clip = look(np.zeros(3), AHEAD) @ LENSES[lens]
        world_to_clip[:, 2] = world_to_clip[:, 3] - world_to_clip[:, 2]  # z/w becomes 1 - z/w
        assert "depth does not fall" in camera_fault(world_to_clip)


def test_a_camera_with_w_below_0_in_front_alone_is_told():
    """OpenGL's view looks along -Z; whose w was taken from +Z sees what is before it behind it."""
    world_to_clip = camera()
    ahead = np.array([500.0, 0, 0, 1])
    assert (ahead @ world_to_clip)[3] == 500
    world_to_clip[:, 3] *= -1
    assert (ahead @ world_to_clip)[3] == -500
    assert "w below 0 in front of it" in camera_fault(world_to_clip)
