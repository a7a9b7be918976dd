import itertools
import subprocess
import sys

import av
import imageio.v3 as imageio
import numpy as np
import pytest
from PIL import Image

from gc25d.errors import UserError
from gc25d.evaluate import panels
from gc25d.evaluate.panels import (
    GAP,
    LABEL_HEIGHT,
    clip_pictures,
    clip_sheet,
    enlarge,
    shown_frames,
    stack_sheets,
    text_strip,
    video_frames,
    video_shape,
    write_mp4,
    write_png,
)
from gc25d.prep.overlay import PALETTE


def moving(frames: int, height: int, width: int) -> np.ndarray:
    t, y, x = np.ogrid[:frames, :height, :width]
    red = (x * 2 + t * 3) % 256
    green = (y * 2 + 0 * t + 0 * x) % 256
    blue = (255 - x - y + 0 * t) % 256
    return np.stack(np.broadcast_arrays(red, green, blue), axis=-1).astype(np.uint8)


def pictures(frames: int = 5, height: int = 96, width: int = 160, name: str = "a__run-0__000000"):
    truth = np.full((frames, height, width, 3), (200, 40, 40), np.uint8)
    generated = np.full_like(truth, (40, 40, 200))
    ids = np.full((frames, height, width), 1, np.uint8)
    return clip_pictures(name, truth, generated, ids)


def decode(path) -> np.ndarray:
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


@pytest.mark.parametrize(
    ("size", "written"),
    [((66, 50), (66, 50)), ((65, 33), (66, 34)), ((50, 66), (50, 66)), ((7, 8), (8, 8))],
)
def test_odd_sides_gain_one_and_nothing_else_changes_size(tmp_path, size, written):
    path = tmp_path / "v.mp4"
    write_mp4(path, moving(3, *size), 10)
    assert path.stat().st_size > 0
    assert video_shape(path) == (3, *written)


def test_the_video_shows_the_frames_in_order(tmp_path):
    frames = np.stack([np.full((64, 64, 3), v, np.uint8) for v in (10, 90, 170, 250)])
    write_mp4(tmp_path / "v.mp4", frames, 12.5)
    means = decode(tmp_path / "v.mp4").mean(axis=(1, 2, 3))
    np.testing.assert_allclose(means, [10, 90, 170, 250], atol=4)
    with av.open(str(tmp_path / "v.mp4")) as container:
        assert float(container.streams.video[0].average_rate) == 12.5
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"


PURE = list(itertools.product((0, 128, 255), repeat=3))
PATCH = 16


def patches() -> np.ndarray:
    """Two equal frames: a patch of each of 27 colours from left to right."""
    row = np.repeat(np.array(PURE, np.uint8), PATCH, axis=0)
    return np.broadcast_to(row, (2, 32, len(row), 3)).copy()


def worst(picture: np.ndarray) -> float:
    """Levels that the middle of any patch is off its colour."""
    middles = [slice(PATCH * i + 5, PATCH * i + 11) for i in range(len(PURE))]
    return max(
        float(np.abs(picture[8:24, middle].astype(float) - colour).max())
        for middle, colour in zip(middles, PURE, strict=True)
    )


def bt709(planes: np.ndarray, height: int, width: int) -> np.ndarray:
    """yuv420p → RGB by the formulas of BT.709-6, item 3 and 4 (8 bits, 16..235)."""
    luma, blue, red = np.split(
        planes.astype(float).ravel(), [height * width, height * width * 5 // 4]
    )
    y = (luma.reshape(height, width) - 16) / 219
    cb, cr = (
        ((chroma - 128) / 224).reshape(height // 2, width // 2).repeat(2, 0).repeat(2, 1)
        for chroma in (blue, red)
    )
    r, b = y + 1.5748 * cr, y + 1.8556 * cb
    return np.stack([r, (y - 0.2126 * r - 0.0722 * b) / 0.7152, b], axis=-1).clip(0, 1) * 255


def test_pure_colours_come_back(tmp_path):
    path, frames = tmp_path / "v.mp4", patches()
    write_mp4(path, frames, 10)
    with av.open(str(path)) as container:
        read = [f.to_ndarray(format="yuv420p") for f in container.decode(video=0)]
    assert worst(bt709(read[1], *frames.shape[1:3])) <= 3
    assert worst(decode(path)[1]) <= 3
    assert worst(imageio.imread(path, plugin="pyav")[1]) <= 3


def test_colours_are_tagged_in_the_stream_and_in_the_container(tmp_path):
    path = tmp_path / "v.mp4"
    write_mp4(path, patches(), 10)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.pix_fmt == "yuv420p"
        frame = next(container.decode(video=0))
    for tagged in (stream.codec_context, frame):
        assert (tagged.colorspace, tagged.color_primaries, tagged.color_trc) == (1, 1, 1)
        assert tagged.color_range == 1  # 16..235
    # ISO 14496-12: nclx, then primaries, transfer and matrix of 16 bits each, full range 0.
    assert b"colrnclx" + bytes([0, 1, 0, 1, 0, 1, 0]) in path.read_bytes()


def test_the_index_stands_before_the_pictures(tmp_path):
    path = tmp_path / "v.mp4"
    write_mp4(path, moving(3, 64, 64), 10)
    data, boxes, at = path.read_bytes(), [], 0
    while at < len(data):
        boxes.append(data[at + 4 : at + 8].decode())
        at += int.from_bytes(data[at : at + 4], "big")
    assert boxes.index("moov") < boxes.index("mdat")


SCRIPT = """
import sys
import numpy as np
from pathlib import Path
from gc25d.evaluate.panels import write_mp4
frames = np.random.default_rng(0).integers(0, 256, (9, 96, 160, 3), dtype=np.uint8)
write_mp4(Path(sys.argv[1]), frames, 17.5)
"""


def test_bytes_repeat_here_and_in_a_fresh_process(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (9, 96, 160, 3), dtype=np.uint8)
    write_mp4(tmp_path / "a.mp4", frames, 17.5)
    write_mp4(tmp_path / "b.mp4", frames, 17.5)
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "c.mp4")], check=True)
    first = (tmp_path / "a.mp4").read_bytes()
    assert first == (tmp_path / "b.mp4").read_bytes() == (tmp_path / "c.mp4").read_bytes()


@pytest.mark.parametrize("width", [298, 544])
def test_bytes_do_not_depend_on_what_memory_held_before(tmp_path, width):
    rng = np.random.default_rng(1)
    frames = moving(5, 278, width) // 2 + rng.integers(0, 9, (5, 278, width, 3), dtype=np.uint8)
    written = set()
    for number in range(8):
        # Freed blocks of all sizes, each full of one value: what the encoder's memory then holds.
        blocks = [
            np.full(size, rng.integers(256), np.uint8) for size in rng.integers(1, 3_000_000, 40)
        ]
        del blocks[::2]
        write_mp4(tmp_path / f"{number}.mp4", frames, 10)
        written.add((tmp_path / f"{number}.mp4").read_bytes())
    assert len(written) == 1


def test_a_video_that_reads_back_otherwise_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "_encode", lambda path, frames, fps: path.write_bytes(b""))
    with pytest.raises(UserError, match=r"v\.mp4.*\(0, 0, 0\)"):
        write_mp4(tmp_path / "v.mp4", moving(3, 64, 64), 10)
    assert list(tmp_path.iterdir()) == []


def test_the_panel_has_three_enlarged_views_under_labels():
    frames = video_frames(pictures())
    factor = 3  # 96 → 288, the first multiple of at least 256
    height, width = 96 * factor, 160 * factor
    assert frames.shape == (5, LABEL_HEIGHT + height, 3 * width + 2 * GAP, 3)
    for number, colour in enumerate([(200, 40, 40), (40, 40, 200), PALETTE["ground"]]):
        left = number * (width + GAP)
        view = frames[:, LABEL_HEIGHT:, left : left + width]
        assert (view == colour).all()
        label = frames[0, :LABEL_HEIGHT, left : left + width]
        assert (label.max(axis=-1) > 200).sum() > 20  # bright strokes on the dark strip


def test_full_size_frames_are_not_enlarged():
    frames = video_frames(pictures(frames=2, height=480, width=832))
    assert frames.shape == (2, LABEL_HEIGHT + 480, 3 * 832 + 2 * GAP, 3)


def test_views_of_different_sizes_are_refused():
    truth = moving(3, 32, 32)
    with pytest.raises(ValueError, match="clip c"):
        clip_pictures("c", truth, truth, np.zeros((3, 32, 64), np.uint8))


def test_enlarging_repeats_pixels():
    small = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = enlarge(small, 2)
    assert large.shape == (4, 4, 3)
    assert (large[::2, ::2] == small).all()
    assert (large[1::2, 1::2] == small).all()


@pytest.mark.parametrize(
    ("count", "shown"),
    [(17, [0, 4, 8, 12, 16]), (81, [0, 20, 40, 60, 80]), (3, [0, 1, 2]), (1, [0])],
)
def test_shown_frames(count, shown):
    assert shown_frames(count) == shown


def test_the_sheet_holds_every_clip_s_frames(tmp_path):
    other = pictures(height=64, width=64, name="b__run-1__000017")
    sheet = stack_sheets([clip_sheet(pictures()), clip_sheet(other)])
    write_png(tmp_path / "sheet.png", sheet)
    with Image.open(tmp_path / "sheet.png") as read:
        np.testing.assert_array_equal(np.asarray(read), sheet)
    shown = 5
    red = (sheet == (200, 40, 40)).all(axis=-1).sum()
    assert red == shown * (96 * 160 * 2**2 + 64 * 64 * 5**2)


def test_different_labels_look_different():
    assert not np.array_equal(text_strip("GT", 80), text_strip("generated", 80))
    assert text_strip("a very long clip name indeed", 40).shape == (LABEL_HEIGHT, 40, 3)
