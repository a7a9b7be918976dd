"""A synthetic run: what its files hold, that bytes repeat, and that words tell the motion."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from gc25d.capture.raw.classes import PARTS, STENCIL
from gc25d.capture.raw.format import (
    frame_count,
    read_cameras,
    read_clips,
    read_frames,
    read_meta,
    read_skeletons,
    read_stencil,
)
from gc25d.capture.raw.run_spec import RunSpec
from gc25d.capture.synthetic.bodies import LIMBS
from gc25d.capture.synthetic.capture import capture_run, plan_run, render
from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import write_json
from gc25d.settings.loading import load_settings
from gc25d.settings.tree import SCENES

SPEC = RunSpec(
    scene="synthetic_perspective",
    run=0,
    seed=0,
    frames=9,
    clips=2,
    width=96,
    height=72,
    tics_per_frame=2,
)
LONG = dataclasses.replace(SPEC, clips=60)


def digests(run_dir):
    return {path.name: digest_file(path) for path in sorted(run_dir.iterdir())}


@pytest.fixture(scope="module", params=SCENES["synthetic"])
def run_dir(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "run-000"
    capture_run(folder, dataclasses.replace(SPEC, scene=request.param))
    return folder


def test_files_hold_what_was_cast(run_dir):
    meta = read_meta(run_dir)
    spec = dataclasses.replace(SPEC, scene=f"synthetic_{meta.projection}")
    plan = plan_run(spec)
    assert (meta.source, meta.fps, meta.ground_z) == ("synthetic", 17.5, (plan.scene.floor.z,))
    assert frame_count(run_dir) == 18
    skeletons = read_skeletons(run_dir)
    np.testing.assert_array_equal(skeletons.capsules, plan.capsules)
    assert set(skeletons.part) == set(PARTS.values())
    stencil, frames = read_stencil(run_dir, 0, 18), read_frames(run_dir, 0, 18)
    for frame in (0, 17):
        rgb, seen = render(plan, spec, frame)
        np.testing.assert_array_equal(stencil[frame], seen.stencil)
        assert np.abs(frames[frame].astype(int) - rgb).mean() < 3  # JPEG
    table = read_clips(run_dir, 9)
    assert [clip.start for clip in table.clips] == [0, 9]
    assert tuple(clip.text_keys for clip in table.clips) == plan.text_keys
    assert all(
        table.prompt(key).startswith("The player ") for c in table.clips for key in c.text_keys
    )
    assert np.abs(np.diff(read_cameras(run_dir), axis=0)).max() > 0.01


def test_the_same_spec_gives_the_same_bytes_also_in_a_fresh_process(run_dir, tmp_path):
    scene = f"synthetic_{read_meta(run_dir).projection}"
    settings = {
        "version": 1,
        "geometry": {"frames": 9, "height": 64, "width": 96},
        "capture": {
            **{"source": "synthetic", "scenes": [scene], "clips_per_run": 2},
            **{"width": 96, "height": 72},
        },
    }
    write_json(tmp_path / "settings.json", settings)
    command = [sys.executable, "-m", "gc25d.steps.capture"]
    command += ["--settings", str(tmp_path / "settings.json"), "--scene", scene]
    command += ["--run", "run-000", "--out", str(tmp_path / "run-000")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    assert digests(tmp_path / "run-000") == digests(run_dir)


@pytest.mark.parametrize("change", [{"run": 1}, {"seed": 1}])
def test_another_run_or_seed_is_another_world(change):
    plans = [plan_run(SPEC), plan_run(dataclasses.replace(SPEC, **change))]
    assert plans[0].cameras != plans[1].cameras
    assert plans[0].scene.floor != plans[1].scene.floor


def test_every_class_and_part_is_seen():
    ids = set()
    for run in range(4):
        spec = dataclasses.replace(SPEC, run=run, clips=12)
        plan = plan_run(spec)
        for frame in range(0, 108, 12):
            ids |= set(np.unique(render(plan, spec, frame)[1].sem_ids))
    assert ids == {value for value in STENCIL.values() if value < 7} | set(PARTS.values())


def torso(plan, who):
    """Ground place of a character's torso in every frame, cm."""
    return plan.capsules[:, plan.part == PARTS[f"{who}_torso"], :2].mean(axis=1, dtype=np.float64)


def heading(plan):
    """Where the player faces, radians: across the line from its left leg's hip to the right's."""
    left, right = np.flatnonzero(plan.part == PARTS["player_legs"])
    across = (plan.capsules[:, right] - plan.capsules[:, left])[:, :2].astype(np.float64)
    return np.unwrap(np.arctan2(across[:, 1], across[:, 0]) - np.pi / 2)


def test_text_keys_tell_the_motion():
    plan = plan_run(LONG)
    keys = [key for clip in plan.text_keys for key in clip]
    ends = np.cumsum([1, 4, 4] * LONG.clips) - 1  # last frame of each cell
    place, yaw = torso(plan, "player"), heading(plan)
    seen = set()
    for key, first, last in zip(keys[1:], ends, ends[1:], strict=False):
        names = set(key.split("+"))
        seen |= names
        step = place[last] - place[first]
        turn = yaw[last] - yaw[first]
        middle = (yaw[last] + yaw[first]) / 2
        ahead = step @ [np.cos(middle), np.sin(middle)]
        right = step @ [-np.sin(middle), np.cos(middle)]
        assert (ahead > 5) == ("forward" in names)
        assert (ahead < -5) == ("backward" in names)
        assert (right > 5) == ("strafe_right" in names)
        assert (right < -5) == ("strafe_left" in names)
        assert (turn > 0.02) == ("turn_right" in names)
        assert (turn < -0.02) == ("turn_left" in names)
    assert seen == {
        *("forward", "backward", "strafe_left", "strafe_right", "turn_left", "turn_right"),
        *("attack", "stand"),
    }


def test_characters_move_apart_from_each_other_and_from_obstacles():
    plan = plan_run(LONG)
    player, boss = torso(plan, "player"), torso(plan, "boss")
    assert np.linalg.norm(player - boss, axis=1).min() > 150
    for place in (player, boss):
        assert np.ptp(place, axis=0).min() > 100
        assert np.linalg.norm(place, axis=1).max() < 1010
        for thing in plan.scene.obstacles:
            assert np.linalg.norm(place - [thing.x, thing.y], axis=1).min() > thing.radius
    speed = np.linalg.norm(np.diff(player, axis=0), axis=1)
    assert speed.max() < 1.01 * 300 / LONG.fps


def test_bodies_stand_on_the_ground_and_hold_together():
    plan = plan_run(dataclasses.replace(LONG, scene="synthetic_orthographic"))
    ends = plan.capsules.reshape(len(plan.capsules), 2, len(LIMBS), 7)[:, 0].astype(np.float64)
    lowest = np.minimum(ends[..., 2], ends[..., 5]) - ends[..., 6] - plan.scene.floor.z
    feet = lowest[:, [8, 9]].min(axis=1)  # the lower of both
    assert ((feet > -1) & (feet < 16)).all()
    arms, hands, weapon = ends[:, [2, 3]], ends[:, [6, 7]], ends[:, 10]
    np.testing.assert_allclose(arms[..., 3:6], hands[..., :3], atol=1e-3)  # an arm ends in a hand
    np.testing.assert_allclose(weapon[:, :3], hands[:, 1, 3:6], atol=1e-3)
    lengths = np.linalg.norm(ends[..., 3:6] - ends[..., :3], axis=-1)
    rigid = [0, 1, 2, 3, 4, 5, 6, 7, 10]
    np.testing.assert_allclose(
        lengths[:, rigid], np.broadcast_to(lengths[0, rigid], (len(ends), 9)), rtol=0.1
    )


@pytest.mark.parametrize(
    ("capture", "said"),
    [
        (
            {"source": "synthetic"},
            "capture: scenes holds 'deadly_corridor', which is no scene of synthetic: use "
            "synthetic_perspective, synthetic_orthographic",
        ),
        (
            {"scenes": ["synthetic_perspective"]},
            "scenes holds 'synthetic_perspective', which is no scene of vizdoom: use basic, ",
        ),
        ({"scenes": ["basic", "doom_eternal"]}, "scenes holds 'doom_eternal'"),
    ],
)
def test_unknown_scenes_are_refused_before_anything_runs(capture, said):
    with pytest.raises(UserError) as refused:
        load_settings({"capture": capture})
    assert said in str(refused.value)


def test_known_and_external_scenes_are_accepted():
    for source, scenes in (*SCENES.items(), ("external", ("anything",))):
        settings = load_settings({"capture": {"source": source, "scenes": list(scenes)}})
        assert settings.capture.scenes == scenes


def test_every_listed_scene_can_be_made_and_others_are_named():
    for scene in SCENES["synthetic"]:
        assert len(plan_run(dataclasses.replace(SPEC, scene=scene)).cameras) == 18
    with pytest.raises(UserError, match="'nowhere' is none of synthetic_perspective, "):
        plan_run(dataclasses.replace(SPEC, scene="nowhere"))
