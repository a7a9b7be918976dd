import numpy as np

from gc25d.evaluate.overlays import ALPHA, ENTRY_WIDTH, LabelledClip, legend_strip, overlay_figure
from gc25d.prep.overlay import PALETTE


def labelled(count: int = 3) -> LabelledClip:
    frames = np.full((count, 32, 64, 3), (10, 200, 30), np.uint8)
    return LabelledClip("hall__run-0__000000", frames, np.full((count, 32, 64), 1, np.uint8))


def pixels(picture: np.ndarray, colour) -> int:
    return int((picture == np.asarray(colour)).all(axis=-1).sum())


def test_frames_and_overlays_are_both_shown():
    factor = 5  # 320 / 64
    picture = overlay_figure([labelled(), labelled()])
    area = 2 * 3 * 32 * 64 * factor**2
    assert pixels(picture, (10, 200, 30)) == area
    mixed = np.rint((1 - ALPHA) * np.array([10, 200, 30]) + ALPHA * np.array(PALETTE["ground"]))
    assert pixels(picture, mixed) == area


def test_the_legend_shows_every_colour_and_wraps():
    narrow, wide = legend_strip(ENTRY_WIDTH), legend_strip(10 * ENTRY_WIDTH)
    assert narrow.shape[1] == ENTRY_WIDTH
    assert wide.shape[1] == 10 * ENTRY_WIDTH
    assert narrow.shape[0] == 10 * wide.shape[0] == len(PALETTE) / 2 * wide.shape[0]
    for name, colour in PALETTE.items():
        assert pixels(narrow, colour) >= 100, name
