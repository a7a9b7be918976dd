"""Drawings, pixel by pixel, and the step on a raw run and on a prepared clip."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.evaluate.inspection import (
    Inspected,
    draw_capsules,
    draw_frames,
    draw_grid,
    grid_lines,
    inspection_sheet,
    inspection_video,
)
from gc25d.evaluate.overlays import ALPHA
from gc25d.evaluate.panels import GAP, LABEL_HEIGHT, video_shape
from gc25d.geometry.camera import look, orthographic, perspective, project, rotator_axes
from gc25d.prep.overlay import PALETTE, overlay
from gc25d.steps import inspect

WIDTH, HEIGHT = 96, 64
# Looks straight down from 10 m: 9.6 m × 6.4 m, so a pixel is 10 cm; up in the picture is +X.
DOWN = look(np.array([0, 0, 1000.0]), rotator_axes(-90, 0, 0)) @ orthographic(960, 640, 1, 2000)
AHEAD = look(np.array([30.0, 20, 170]), rotator_axes(-15, 20, 0)) @ perspective(90, 1.5, 5.0)
GREY = np.full((HEIGHT, WIDTH, 3), 100, np.uint8)


def test_lines_from_above_are_ten_pixels_apart():
    """Y = k m at columns 48 + 10k and X = k m at rows 32 − 10k; the pixel before each is marked."""
    lines = grid_lines(DOWN, 0.0, WIDTH, HEIGHT, 100.0)
    columns = np.flatnonzero(lines.all(axis=0))
    rows = np.flatnonzero(lines.all(axis=1))
    assert columns.tolist() in ([7, 17, 27, 37, 47, 57, 67, 77, 87], list(range(8, 96, 10)))
    assert rows.tolist() in ([1, 11, 21, 31, 41, 51, 61], list(range(2, 64, 10)))
    assert lines.sum() == 9 * HEIGHT + 7 * WIDTH - 9 * 7


@pytest.mark.parametrize("ground_z", [0.0, -80.0])
def test_points_of_world_lines_fall_on_drawn_ones(ground_z):
    """Forward projection of X = 3 m and of Y = 1 m, near enough that lines are not left out."""
    lines = grid_lines(AHEAD, ground_z, WIDTH, HEIGHT, 100.0)
    near = np.pad(lines, 1)
    y, x, z = np.linspace(-50, 150, 200), np.linspace(150, 320, 200), np.full(200, ground_z)
    points = [np.stack([np.full(200, 300.0), y, z], axis=-1)]
    points += [np.stack([x, np.full(200, 100.0), z], axis=-1)]
    pixels, _ = project(np.concatenate(points), AHEAD, WIDTH, HEIGHT)
    u, v = np.floor(pixels).astype(int).T
    shown = (u >= 0) & (u < WIDTH) & (v >= 0) & (v < HEIGHT)
    assert shown.sum() > 150
    # The line passes through the pixel or its right or lower neighbour.
    around = [near[v[shown] + 1 + dv, u[shown] + 1 + du] for dv in (-1, 0) for du in (-1, 0)]
    assert np.any(around, axis=0).all()


def test_no_lines_in_the_sky_nor_where_they_would_cover_everything():
    level = look(np.array([0, 0, 170.0]), rotator_axes(0, 0, 0)) @ perspective(90, 1.5, 5.0)
    lines = grid_lines(level, 0.0, WIDTH, HEIGHT, 100.0)
    assert lines[HEIGHT // 2 + 12 :].any()
    assert not lines[: HEIGHT // 2 + 2].any()


def test_the_grid_changes_only_its_pixels():
    drawn = draw_grid(GREY, DOWN, 0.0)
    thin = grid_lines(DOWN, 0.0, WIDTH, HEIGHT, 100.0)
    strong = grid_lines(DOWN, 0.0, WIDTH, HEIGHT, 1000.0)
    assert (drawn[~thin & ~strong] == 100).all()
    assert (drawn[thin & ~strong] == round(100 * 0.55 + 255 * 0.45)).all()
    assert (drawn[strong] == 240).all()  # 100 · 0.1 + 255 · 0.9 = 239.5, and rint is even
    assert strong.any()


def test_outlines_have_their_parts_colours():
    """A ball of 1 m radius below the camera: 10 pixels around (48, 32)."""
    capsules = np.array([[0, 0, 200, 0, 0, 200, 100], [np.nan] * 7], float)
    drawn = draw_capsules(GREY, DOWN, capsules, np.array([15, 16], np.uint8))
    changed = (drawn != 100).any(axis=-1)
    assert (drawn[changed] == PALETTE["player_weapon"]).all()
    v, u = np.nonzero(changed)
    radii = np.hypot(u + 0.5 - 48, v + 0.5 - 32)
    assert radii.min() > 8.9
    assert radii.max() < 11.1
    assert len(np.unique(np.round(np.arctan2(v + 0.5 - 32, u + 0.5 - 48), 1))) > 30  # all around


def inspected(ground_z: float | None = 0.0) -> Inspected:
    capsules = np.tile(np.array([0, 0, 200, 0, 0, 200, 100.0]), (3, 1, 1))
    ids = np.full((3, HEIGHT, WIDTH), 1, np.uint8)
    part = np.array([11], np.uint8)
    return Inspected(
        "a run", np.stack([GREY] * 3), ids, np.stack([DOWN] * 3), capsules, part, ground_z
    )


def test_each_frame_gets_grid_then_outlines():
    frames = draw_frames(inspected())
    expected = draw_capsules(
        draw_grid(GREY, DOWN, 0.0), DOWN, inspected().capsules[0], np.array([11], np.uint8)
    )
    assert (frames == expected).all()
    bare = draw_frames(inspected(None))
    assert (bare == draw_capsules(GREY, DOWN, inspected().capsules[0], inspected().part)).all()


def test_the_video_shows_geometry_beside_ids():
    """64 rows are enlarged 4 times to 256."""
    video = inspection_video(inspected())
    assert video.shape == (3, LABEL_HEIGHT + 256, 2 * 384 + GAP, 3)
    assert (video[1, LABEL_HEIGHT::4, :384:4] == draw_frames(inspected())[1]).all()
    ids = overlay(inspected().frames, inspected().sem_ids, ALPHA)
    assert (video[1, LABEL_HEIGHT::4, 384 + GAP :: 4] == ids[1]).all()
    assert inspection_sheet(inspected()).shape[1] == 3 * 3 * WIDTH + 2 * GAP


@pytest.fixture
def draw(monkeypatch):
    def draw(target: object, out: Path, *options: object) -> None:
        command = ["inspect", str(target), "--out", str(out), *map(str, options)]
        monkeypatch.setattr(sys, "argv", command)
        inspect.main(inspect.parse_arguments())

    return draw


@pytest.fixture
def raw_root(small_dataset: Path) -> Path:
    return small_dataset.parent / "raw"


def test_a_raw_run_is_drawn_frame_by_frame(draw, raw_root, tmp_path):
    run = raw_root / "drawn/castle/run-001"
    draw(run, tmp_path / "run.mp4", "--start", 3, "--count", 6)
    assert video_shape(tmp_path / "run.mp4") == (6, LABEL_HEIGHT + 256, 2 * 256 + GAP)
    with pytest.raises(UserError, match="no frames from 45 on, the run has 45"):
        draw(run, tmp_path / "run.mp4", "--start", 45)
    with pytest.raises(UserError, match=r"ends in \.mp4 or \.png"):
        draw(run, tmp_path / "run.gif")


def test_a_clip_is_drawn_with_the_mask_of_its_sample(draw, raw_root, small_dataset, tmp_path):
    """The sheet differs in the overlay row, exactly where the training sample is hidden."""
    clip = "castle__run-001__000009"
    where = ("--data", small_dataset, "--raw-root", raw_root)
    draw(clip, tmp_path / "plain.png", *where)
    draw(clip, tmp_path / "masked.png", *where, "--seed", 4, "--epoch", 2)
    draw(clip, tmp_path / "other.png", *where, "--seed", 4, "--epoch", 2, "--index", 1)
    plain, masked, other = (
        np.asarray(Image.open(tmp_path / f"{name}.png")).astype(int)
        for name in ("plain", "masked", "other")
    )
    assert plain.shape == masked.shape
    dataset = ClipDataset(small_dataset, "train", seed=4, mask_p=1.0)
    index = [row.clip_id for row in dataset.rows].index(clip)
    hidden = (dataset.sample(2, index).sem_ids == 255).numpy()
    shown = [0, 2, 4, 6, 8]  # of 9 frames
    changed = (plain != masked).any(axis=-1)
    pixels = hidden[shown].sum() * 5**2  # 320 / 64 times as large
    assert 0.9 * pixels < changed.sum() <= pixels
    assert (masked != other).any()
    draw(clip, tmp_path / "clip.mp4", *where)
    assert video_shape(tmp_path / "clip.mp4")[0] == 9


def test_unknown_and_dropped_clips_are_named(draw, small_dataset, raw_root, tmp_path):
    where = ("--data", small_dataset, "--raw-root", raw_root)
    with pytest.raises(UserError, match="castle__run-001__000009"):
        draw("castle__run-001__000008", tmp_path / "a.png", *where)
    with pytest.raises(UserError, match="name a built data set with --data"):
        draw("castle__run-001__000009", tmp_path / "a.png", "--data", tmp_path)
    with pytest.raises(UserError, match="expected <scene>__<run>__<start>"):
        draw("no/such/folder", tmp_path / "a.png", *where)
