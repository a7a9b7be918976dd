import numpy as np
import pytest

from gc25d.errors import UserError
from gc25d.geometry.camera import look, perspective, pixel_centers, rotator_axes, unproject_rays
from gc25d.geometry.capsule_rays import ray_distances
from gc25d.geometry.capsules import nearest_in_image
from gc25d.prep.parts import SEM, STENCIL, collapse_parts, part_ids

CAMERA = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, 1, 1)
HEAD = [100.0, 0, 50, 100, 0, 50, 20]
LEGS = [100.0, 0, -60, 100, 0, -20, 20]
BEHIND = [-100.0, 0, 0, -100, 0, 0, 20]


def ids(stencil, capsules, part):
    stencil = np.asarray(stencil, np.uint8)[None]
    capsules = np.asarray(capsules, np.float32).reshape(1, -1, 7)
    return part_ids(stencil, CAMERA[None], capsules, np.asarray(part, np.uint8))[0]


def test_names_and_numbers():
    assert SEM["player_head"] == 10
    assert SEM["player_weapon"] == 15
    assert SEM["boss_head"] == 16
    assert SEM["boss_hands_feet"] == 20
    assert SEM["boss_weapon"] == 21
    assert (SEM["sky"], SEM["prop"], SEM["unknown"]) == (0, 6, 255)
    assert (STENCIL["player"], STENCIL["boss"]) == (7, 8)
    assert len(SEM) == 20


def test_static_classes_stay():
    stencil = np.arange(7).reshape(1, 7)
    np.testing.assert_array_equal(ids(stencil, [HEAD], [16]), stencil)


def test_hit_pixels_get_the_capsule_hit_and_others_the_nearest():
    # 20 × 20 pixels, focal length 10: the head's disc spans rows 3..7, the legs' 10..18
    stencil = np.full((20, 20), STENCIL["boss"])
    found = ids(stencil, [HEAD, LEGS], [16, 19])
    assert found[5, 10] == SEM["boss_head"]  # hit
    assert found[14, 10] == SEM["boss_legs"]
    assert found[0, 0] == SEM["boss_head"]  # missed: nearest
    assert found[19, 19] == SEM["boss_legs"]
    assert set(np.unique(found)) == {16, 19}


def test_a_character_takes_only_its_own_parts():
    stencil = np.full((20, 20), STENCIL["boss"])
    stencil[:, 10:] = STENCIL["player"]
    found = ids(stencil, [HEAD, LEGS], [10, 19])  # player's head, boss's legs
    assert set(np.unique(found[:, :10])) == {SEM["boss_legs"]}
    assert set(np.unique(found[:, 10:])) == {SEM["player_head"]}


@pytest.mark.parametrize("capsules", [[], [[np.nan] * 7], [BEHIND]])
def test_without_a_capsule_before_the_camera_it_is_the_torso(capsules):
    stencil = np.array([[STENCIL["player"], STENCIL["boss"], 1]])
    found = ids(stencil, capsules, [10] * len(capsules))
    assert found.tolist() == [[SEM["player_torso"], SEM["boss_torso"], 1]]


def test_every_frame_has_its_own_pose():
    stencil = np.full((2, 4, 4), STENCIL["boss"], np.uint8)
    capsules = np.array([[HEAD, [np.nan] * 7], [[np.nan] * 7, LEGS]], np.float32)
    found = part_ids(stencil, np.stack([CAMERA] * 2), capsules, np.array([16, 19], np.uint8))
    assert [np.unique(frame).tolist() for frame in found] == [[16], [19]]


def plain_ids(stencil, camera, capsules, part):
    """Every pixel of a character against every capsule of it."""
    height, width = stencil.shape
    centres = pixel_centers(width, height)
    found = stencil.copy()
    for who, parts in ((7, range(10, 16)), (8, range(16, 22))):
        own = np.isin(part, parts)
        pixels = centres[stencil == who]
        origins, directions = unproject_rays(camera, pixels, width, height)
        distances = np.stack([ray_distances(origins.T, directions.T, c) for c in capsules[own]])
        nearest = nearest_in_image(pixels, capsules[own], camera, width, height)
        chosen = np.where(np.isinf(distances.min(axis=0)), nearest, distances.argmin(axis=0))
        found[stencil == who] = part[own][chosen]
    return found


def test_ids_are_those_of_testing_every_pixel_against_every_capsule(monkeypatch):
    """Nine bodies before and beside the camera, one across it; wide outlines, so many misses."""
    random = np.random.default_rng(0)
    bodies = random.uniform((60, -150, -40), (300, 150, 40), (9, 3))
    bodies[0] = (20, 10, 0)
    limbs = random.uniform(-25, 25, (9, 4, 6)) + np.tile(bodies, 2)[:, None]
    capsules = np.concatenate([limbs, random.uniform(3, 10, (9, 4, 1))], axis=-1).reshape(36, 7)
    part = np.array([10, 11, 12, 13] * 2 + [16, 17, 18, 19] * 7, np.uint8)
    stencil = np.full((48, 64), STENCIL["boss"], np.uint8)
    stencil[:, 25:40] = STENCIL["player"]
    stencil[::5] = STENCIL["ground"]
    camera = look(np.zeros(3), rotator_axes(0, 0, 0)) @ perspective(90, 64 / 48, 1)
    found = part_ids(stencil[None], camera[None], capsules[None], part)[0]
    monkeypatch.setattr("gc25d.geometry.capsules._TILE", 1 << 20)  # one tile: nothing is left out
    np.testing.assert_array_equal(found, plain_ids(stencil, camera, capsules, part))
    assert len(np.unique(found)) == 8


def test_collapse():
    everything = np.array(list(SEM.values()), np.uint8)
    expected = [0, 1, 2, 3, 4, 5, 6, *[7] * 6, *[8] * 6, 255]
    assert collapse_parts(everything).tolist() == expected


def test_unknown_class_and_unequal_lengths_are_refused():
    with pytest.raises(UserError, match=r"stencil class 9: expected 0\.\.8"):
        ids([[9]], [HEAD], [16])
    with pytest.raises(UserError, match="2 stencil pictures, 1 cameras and 1 skeletons"):
        part_ids(
            np.zeros((2, 1, 1), np.uint8),
            CAMERA[None],
            np.zeros((1, 1, 7)),
            np.array([16], np.uint8),
        )
