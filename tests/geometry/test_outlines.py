import numpy as np
import pytest

from gc25d.geometry.camera import look, orthographic, perspective, pixel_centers, rotator_axes
from gc25d.geometry.capsules import first_hits
from gc25d.geometry.outlines import POINTS, capsule_outline

WIDTH, HEIGHT = 160, 96


def inside(polygon, pixels):
    """Whether each pixel lies within a convex polygon: left of all its edges, or right of all."""
    edges = np.roll(polygon, -1, axis=0) - polygon
    offsets = pixels[..., None, :] - polygon
    cross = edges[:, 0] * offsets[..., 1] - edges[:, 1] * offsets[..., 0]
    return (cross >= 0).all(axis=-1) | (cross <= 0).all(axis=-1)


def test_a_sphere_before_a_parallel_camera_is_a_circle():
    """400 × 240 cm on 160 × 96 pixels: 0.4 pixels a cm; radius 50 cm → 20 pixels."""
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ orthographic(400, 240, 1, 1000)
    outline = capsule_outline(np.array([500, 0, 0, 500, 0, 0, 50.0]), camera, WIDTH, HEIGHT)
    assert outline.shape == (POINTS, 2)
    assert np.linalg.norm(outline - (80, 48), axis=-1) == pytest.approx(np.full(POINTS, 20))


def test_a_sphere_on_the_axis_of_a_perspective_camera():
    """Seen under asin(r/d): tan = r/√(d² − r²) = 3/4 for r 300, d 500; 90° on 160 pixels → 60."""
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, WIDTH / HEIGHT, 1.0)
    outline = capsule_outline(np.array([500, 0, 0, 500, 0, 0, 300.0]), camera, WIDTH, HEIGHT)
    assert np.linalg.norm(outline - (80, 48), axis=-1) == pytest.approx(np.full(POINTS, 60))


@pytest.mark.parametrize("kind", ["perspective", "orthographic"])
@pytest.mark.parametrize("seed", range(5))
def test_outlines_enclose_the_pixels_whose_rays_hit(kind, seed):
    random = np.random.default_rng(seed)
    lens = {
        "perspective": perspective(80, WIDTH / HEIGHT, 5.0),
        "orthographic": orthographic(500, 300, 5.0, 4000.0),
    }[kind]
    camera = look(np.array([0, 0, 150.0]), rotator_axes(-8, 10, 3)) @ lens
    ends = np.array([400, 70, 100]) + random.uniform(-110, 110, (2, 3))
    capsule = np.array([*ends.ravel(), random.uniform(10, 60)])
    pixels = pixel_centers(WIDTH, HEIGHT)
    hit = first_hits(pixels.reshape(-1, 2), capsule[None], camera, WIDTH, HEIGHT) == 0
    enclosed = inside(capsule_outline(capsule, camera, WIDTH, HEIGHT), pixels).ravel()
    assert hit.sum() > 100
    assert not (enclosed & ~hit).any()  # a polygon of points on the outline lies within it
    assert (hit & ~enclosed).sum() <= 0.02 * hit.sum()  # what its 64 corners cut off


def test_absent_and_unseen_capsules_have_no_outline():
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, WIDTH / HEIGHT, 1.0)
    for capsule in (
        [np.nan] * 7,
        [-500, 0, 0, -500, 0, 0, 50],  # behind
        [500, 0, 0, -500, 0, 0, 50],  # one end behind
        [30, 0, 0, 30, 0, 0, 50],  # around the camera
    ):
        assert capsule_outline(np.array(capsule, float), camera, WIDTH, HEIGHT) is None


def test_what_reaches_behind_a_parallel_camera_has_no_outline():
    """The near plane lies 100 cm ahead."""
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ orthographic(400, 240, 100, 1000)
    for x, seen in ((-500, False), (149, False), (151, True)):
        outline = capsule_outline(np.array([x, 0, 0, x, 0, 0, 50.0]), camera, WIDTH, HEIGHT)
        assert (outline is not None) == seen, x
