import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gc25d.geometry.camera import (
    look,
    orthographic,
    perspective,
    pixel_centers,
    rotator_axes,
    unproject_rays,
)
from gc25d.geometry.capsule_rays import ray_distances
from gc25d.geometry.capsules import first_hits, nearest_in_image

CAMERA = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, 1, 1)
UPRIGHT = np.array([100.0, 0, -20, 100, 0, 20, 10])


def distance(origin, direction, capsule):
    direction = np.array(direction, float) / np.linalg.norm(direction)
    origin = np.array([origin], float).T
    return ray_distances(origin, direction[:, None], np.asarray(capsule, float))[0]


def test_side_cap_and_miss_by_hand():
    assert distance((0, 0, 0), (1, 0, 0), UPRIGHT) == 90  # the cylinder
    assert distance((100, 0, 100), (0, 0, -1), UPRIGHT) == 70  # the cap on top, at z = 30
    assert distance((0, 0, 25), (1, 0, 0), UPRIGHT) == 100 - np.sqrt(75)  # the cap's flank
    assert np.isinf(distance((0, 11, 0), (1, 0, 0), UPRIGHT))
    assert np.isinf(distance((0, 0, 0), (-1, 0, 0), UPRIGHT))  # behind
    assert distance((100, 0, 0), (1, 0, 0), UPRIGHT) == 0  # inside


def test_sphere():
    assert distance((0, 0, 0), (1, 0, 0), [50, 0, 0, 50, 0, 0, 5]) == 45


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-40, 40), min_size=6, max_size=6),
    st.floats(2, 15),
    st.floats(-0.6, 0.6),
    st.floats(-0.6, 0.6),
)
def test_agrees_with_stepping_along_the_ray(ends, radius, right, up):
    capsule = np.array([*ends, radius])
    capsule[[0, 3]] += 120  # in front of the origin
    direction = np.array([1, right, up]) / np.linalg.norm([1, right, up])
    start, axis = capsule[:3], capsule[3:6] - capsule[:3]
    travelled = 0.0
    for _ in range(300):  # sphere tracing: step by the distance to the surface
        offset = travelled * direction - start
        along = np.clip(offset @ axis / max(axis @ axis, 1e-9), 0, 1)
        gap = np.linalg.norm(offset - along * axis) - radius
        travelled += gap
        if gap < 1e-7 or travelled > 1000:
            break
    found = distance((0, 0, 0), direction, capsule)
    if travelled > 1000:
        assert np.isinf(found)
    elif gap < 1e-7:
        np.testing.assert_allclose(found, travelled, atol=1e-3)


def test_first_of_two_wins_and_absent_ones_do_not_count():
    nearer = np.array([60.0, 0, 0, 60, 0, 0, 3])
    absent = np.array([30.0, 0, 0, 30, 0, np.nan, 3])
    capsules = np.stack([UPRIGHT, absent, nearer])
    centre, above, outside = [50.0, 50], [50, 40], [5, 5]
    hits = first_hits(np.array([centre, above, outside]), capsules, CAMERA, 100, 100)
    assert hits.tolist() == [2, 0, -1]


def test_culling_changes_nothing():
    random = np.random.default_rng(3)
    capsules = random.uniform(-60, 60, (12, 7))
    capsules[:, [0, 3]] += 90
    capsules[:, 6] = random.uniform(2, 12, 12)
    capsules[0, [0, 3]] = -5, 60  # one reaches behind the camera
    pixels = pixel_centers(40, 40).reshape(-1, 2)
    origins, directions = unproject_rays(CAMERA, pixels, 40, 40)
    distances = np.stack([ray_distances(origins.T, directions.T, c) for c in capsules])
    expected = np.where(np.isinf(distances.min(axis=0)), -1, distances.argmin(axis=0))
    np.testing.assert_array_equal(first_hits(pixels, capsules, CAMERA, 40, 40), expected)


def plain_nearest(pixels, capsules):
    """Every pixel against every capsule in front of `CAMERA`, by sampling each axis finely."""
    along = np.linspace(0, 1, 1001)[:, None]
    gaps = []
    for capsule in capsules:
        ends = 50 + np.stack([capsule[[1, 4]], -capsule[[2, 5]]], -1) / capsule[[0, 3], None] * 50
        radii = capsule[6] * 50 / capsule[[0, 3]]
        axis = ends[0] + along * (ends[1] - ends[0])
        away = np.linalg.norm(pixels[:, None] - axis, axis=-1)
        nearest = away.argmin(axis=1)
        gaps.append(
            away[np.arange(len(pixels)), nearest] - np.interp(nearest / 1000, [0, 1], radii)
        )
    return np.array(gaps)


def test_nearest_leaves_nothing_out():
    """40 capsules, of all sizes and slants; the choice is the smallest gap up to the sampling."""
    random = np.random.default_rng(5)
    capsules = random.uniform(-90, 90, (40, 7))
    capsules[:, [0, 3]] = random.uniform(40, 200, (40, 2))
    capsules[:, 6] = random.uniform(1, 12, 40)
    pixels = random.permutation(pixel_centers(100, 100).reshape(-1, 2))[:500]
    gaps = plain_nearest(pixels, capsules)
    found = nearest_in_image(pixels, capsules, CAMERA, 100, 100)
    chosen = gaps[found, np.arange(len(pixels))]
    assert len(set(found.tolist())) > 10
    assert (chosen - gaps.min(axis=0)).max() < 0.1


def test_capsules_that_share_a_joint_tie_to_the_lower_index():
    upper = np.array([100.0, 5, 43, 100, 5, 3, 12])
    lower = np.array([100.0, 5, 3, 90, 45, 3, 12])
    pixels = pixel_centers(100, 100).reshape(-1, 2)
    one, other = (
        first_hits(pixels, np.stack(pair), CAMERA, 100, 100)
        for pair in ((upper, lower), (lower, upper))
    )
    both = (one == 0) & (other == 0)  # the joint's sphere: whichever stands first
    assert both.sum() > 10
    np.testing.assert_array_equal(one[~both], np.where(other < 0, -1, 1 - other)[~both])


def test_an_empty_set_of_pixels():
    assert first_hits(np.empty((0, 2)), UPRIGHT[None], CAMERA, 9, 9).tolist() == []
    assert nearest_in_image(np.empty((0, 2)), UPRIGHT[None], CAMERA, 9, 9).tolist() == []


def test_nearest_measures_from_the_outline():
    # focal length 50 px. Thick: axis at x = 50, radius 5. Thin: axis at x = 70, radius 1.
    thick, thin = UPRIGHT, np.array([100.0, 40, -20, 100, 40, 20, 2])
    pixels = np.array([[61.5, 50.0], [62.5, 50]])  # the middle between 55 and 69 is 62
    found = nearest_in_image(pixels, np.stack([thick, thin]), CAMERA, 100, 100)
    assert found.tolist() == [0, 1]


def test_nearest_ignores_what_is_behind_and_cuts_what_reaches_behind():
    behind = np.array([-50.0, 0, 0, -60, 0, 0, 5])
    through = np.array([-50.0, 30, 0, 50, 30, 0, 1])
    pixels = np.array([[95.0, 50.0]])
    assert nearest_in_image(pixels, behind[None], CAMERA, 100, 100).tolist() == [-1]
    assert nearest_in_image(pixels, np.stack([behind, through]), CAMERA, 100, 100).tolist() == [1]


def parallel(near):
    """A camera at the origin that looks along X: a pixel is a cm, (50, 50) is Y = Z = 0."""
    return look(np.zeros(3), rotator_axes(0, 0, 0)) @ orthographic(100, 100, near, 1000)


def test_what_is_wholly_behind_a_parallel_camera_does_not_count():
    """The near plane lies at X = 10: a sphere of radius 5 is behind it up to X = 5."""
    pixels = np.array([[95.0, 50.0]])
    for x, found in ((-50.0, -1), (4.9, -1), (5.1, 0), (60.0, 0)):
        sphere = np.array([[x, 0, 0, x, 0, 0, 5.0]])
        assert nearest_in_image(pixels, sphere, parallel(10), 100, 100).tolist() == [found], x
    behind, before = [-50.0, 40, 0, -50, 40, 0, 5], [60.0, 0, 0, 60, 0, 0, 5]
    both = np.array([behind, before])  # the one behind would be nearer to the pixel
    assert nearest_in_image(pixels, both, parallel(10), 100, 100).tolist() == [1]


def test_an_axis_is_cut_where_it_passes_behind_a_parallel_camera():
    """From (20, 0) before the near plane X = 10 to (−20, 40) behind: radius 5 reaches X = 10 from
    X = 5 on, at Y = 15. So the outline ends at column 50 + 15 + 5 = 70; a sphere's at column 80
    starts at 75. Between the two the middle is 72.5; uncut, the first would reach to 95.
    """
    cut, sphere = [20.0, 0, 0, -20, 40, 0, 5], [60.0, 30, 0, 60, 30, 0, 5]
    pixels = np.array([[72.0, 50.0], [73.0, 50.0]])
    found = nearest_in_image(pixels, np.array([cut, sphere]), parallel(10), 100, 100)
    assert found.tolist() == [0, 1]
