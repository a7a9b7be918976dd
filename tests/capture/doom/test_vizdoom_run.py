"""A real game: short runs of ViZDoom."""

import subprocess
import sys

import numpy as np
import pytest

from gc25d.capture.doom.capture import RunSpec, capture_run
from gc25d.capture.doom.engine import open_game
from gc25d.capture.raw.classes import STENCIL
from gc25d.capture.raw.format import (
    frame_count,
    read_cameras,
    read_clips,
    read_frames,
    read_meta,
    read_skeletons,
    read_stencil,
)
from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.geometry.camera import project
from gc25d.prep.parts import SEM, part_ids
from gc25d.records import write_json

SPEC = RunSpec(
    scene="deadly_corridor",
    run=0,
    seed=0,
    frames=17,
    clips=2,
    width=320,
    height=240,
    tics_per_frame=2,
)


def digests(run_dir):
    return {path.name: digest_file(path) for path in sorted(run_dir.iterdir())}


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "run-000"
    capture_run(folder, SPEC)
    return folder


def test_contents(run_dir):
    assert frame_count(run_dir) == 34
    meta = read_meta(run_dir)
    assert meta.fps == 17.5
    assert meta.ground_z == (0.0,)
    table = read_clips(run_dir, 17)
    assert [clip.start for clip in table.clips] == [0, 17]
    assert all(
        table.prompt(key).startswith("The player ") for c in table.clips for key in c.text_keys
    )
    counts = np.bincount(read_stencil(run_dir, 0, 34).ravel(), minlength=9)
    assert set(np.flatnonzero(counts)) <= {
        STENCIL[n] for n in ("ground", "structure", "prop", "player", "boss")
    }
    assert all(counts[STENCIL[name]] > 1000 for name in ("ground", "structure", "player", "boss"))
    frames = read_frames(run_dir, 0, 34)
    assert np.abs(np.diff(frames.astype(int), axis=0)).mean() > 2  # the camera moves


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    """A round room: no wall hides an actor."""
    folder = tmp_path_factory.mktemp("arena") / "run-000"
    capture_run(folder, RunSpec(**{**vars(SPEC), "scene": "defend_the_center", "clips": 4}))
    return folder


@pytest.mark.parametrize(("part", "bound"), [("torso", 0.9), ("head", 0.8)])
def test_capsules_fall_on_their_actors_labels(arena, part, bound):
    """The middles of the capsules project onto actors' pixels, or onto something nearer."""
    stencil, skeletons = read_stencil(arena, 0, 68), read_skeletons(arena)
    chosen = skeletons.capsules[:, skeletons.part == SEM[f"boss_{part}"]].astype(np.float64)
    middles = (chosen[..., :3] + chosen[..., 3:6]) / 2
    pixels, _ = project(middles, read_cameras(arena)[:, None], SPEC.width, SPEC.height)
    inside = ((pixels >= 1) & (pixels < [SPEC.width - 1, SPEC.height - 1])).all(axis=-1)
    frame, _ = np.nonzero(inside)
    column, row = np.floor(pixels[inside]).astype(int).T
    classes = stencil[frame, row, column]
    assert len(classes) > 30
    on_actor = np.isin(classes, [STENCIL[name] for name in ("boss", "player", "prop")])
    assert on_actor.mean() > bound
    # a third of the picture aside there is no actor: the figure above is no accident
    aside = stencil[frame, row, (column + SPEC.width // 3) % SPEC.width]
    assert (aside == STENCIL["boss"]).mean() < 0.2


def test_parts_of_a_real_frame(run_dir):
    stencil, skeletons = read_stencil(run_dir, 0, 34), read_skeletons(run_dir)
    ids = part_ids(stencil, read_cameras(run_dir), skeletons.capsules, skeletons.part)
    assert set(np.unique(ids[stencil == STENCIL["boss"]])) == set(range(16, 22))
    assert (ids[stencil == STENCIL["player"]] == SEM["player_weapon"]).all()
    first = ids[0]  # two enemies at about the same distance: heads above torsos above legs
    rows = [
        np.nonzero(first == SEM[f"boss_{part}"])[0].mean()
        for part in ("head", "torso", "legs", "hands_feet")
    ]
    assert rows == sorted(rows)


def test_the_same_seed_gives_the_same_bytes_also_in_a_fresh_process(run_dir, tmp_path):
    settings = {
        "version": 1,
        "geometry": {"frames": 17, "height": 96, "width": 160},
        "capture": {"seed": 0, "clips_per_run": 2},
    }
    write_json(tmp_path / "settings.json", settings)
    command = [sys.executable, "-m", "gc25d.steps.capture"]
    command += ["--settings", str(tmp_path / "settings.json"), "--scene", "deadly_corridor"]
    command += ["--run", "run-000", "--out", str(tmp_path / "run-000")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert digests(tmp_path / "run-000") == digests(run_dir)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-000", "settings.json"]


def test_another_run_is_another_game(run_dir, tmp_path):
    other = RunSpec(**{**vars(SPEC), "run": 1})
    capture_run(tmp_path, other)
    assert digests(tmp_path)["cameras.npz"] != digests(run_dir)["cameras.npz"]


def test_no_clip_spans_two_episodes(tmp_path):
    """Between frames of a clip the player moves no further than a player can."""
    spec = RunSpec(**{**vars(SPEC), "scene": "basic", "clips": 6})
    capture_run(tmp_path, spec)
    rows = read_cameras(tmp_path)[:, :, [0, 1, 3]]  # the eye is what projects to x = y = w = 0
    eyes = np.stack([np.linalg.solve(matrix[:3].T, -matrix[3]) for matrix in rows])
    steps = np.linalg.norm(np.diff(eyes, axis=0), axis=1)
    within = np.arange(1, len(eyes)) % 17 != 0
    assert steps[within].max() < 200  # cm in two tics
    assert steps[~within].max() > 200  # while between clips this scene starts anew


def test_unknown_scene_and_size_are_named():
    with (
        pytest.raises(UserError, match=r"'doom_eternal' is none of basic, deadly_corridor"),
        open_game("doom_eternal", 320, 240),
    ):
        pass
    with (
        pytest.raises(
            UserError, match=r"100x100, which ViZDoom does not render: use one of 160x120"
        ),
        open_game("basic", 100, 100),
    ):
        pass
