import colorsys

import numpy as np
import pytest

from gc25d.prep.overlay import PALETTE, colourise, legend, overlay
from gc25d.prep.parts import SEM


def hue_saturation(colour):
    hue, saturation, _ = colorsys.rgb_to_hsv(*(channel / 255 for channel in colour))
    return hue * 360, saturation


def test_every_class_has_a_colour_of_its_own():
    assert set(PALETTE) == set(SEM)
    assert len(set(PALETTE.values())) == len(SEM)


@pytest.mark.parametrize("name", SEM)
def test_hues_follow_the_legend_people_know(name):
    hue, saturation = hue_saturation(PALETTE[name])
    who = name.split("_")[0]
    if name == "player_weapon":
        assert 170 <= hue <= 190  # cyan
    elif name == "boss_weapon":
        assert 210 <= hue <= 250  # blue
    elif who == "player":
        assert 250 <= hue <= 335  # violet … magenta
    elif who == "boss":
        assert hue <= 45  # red … orange
        assert saturation > 0.6
    else:
        assert saturation < 0.4  # muted


def test_colourise_and_hatching():
    ids = np.full((2, 16, 16), 255, np.uint8)
    ids[0] = SEM["boss_torso"]
    ids[1, :8] = 99  # no class
    coloured = colourise(ids)
    assert (coloured[0] == PALETTE["boss_torso"]).all()
    colours, counts = np.unique(coloured[1].reshape(-1, 3), axis=0, return_counts=True)
    assert len(colours) == 2
    assert counts.min() / counts.sum() == 0.25  # two stripes in eight pixels


def test_overlay_mixes():
    frames = np.full((1, 4, 4, 3), 100, np.uint8)
    ids = np.full((1, 4, 4), SEM["boss_torso"], np.uint8)
    np.testing.assert_array_equal(overlay(frames, ids, 0), frames)
    np.testing.assert_array_equal(overlay(frames, ids, 1), colourise(ids))
    half = (100 + np.array(PALETTE["boss_torso"])) / 2
    np.testing.assert_array_equal(overlay(frames, ids, 0.5)[0, 0, 0], half)


def test_legend_lists_ids_in_order():
    rows = legend()
    assert [number for _, number, _ in rows] == sorted(SEM.values())
    assert rows[7] == ("player_head", 10, PALETTE["player_head"])
