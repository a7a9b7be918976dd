import codecs
import json
import math
import shutil

import numpy as np
import pytest

from gc25d.capture.raw.format import (
    ClipTable,
    RawClip,
    RunMeta,
    Skeletons,
    frame_count,
    index_frames,
    read_cameras,
    read_clips,
    read_frames,
    read_meta,
    read_skeletons,
    read_stencil,
)
from gc25d.capture.raw.write import write_run
from gc25d.errors import UserError
from gc25d.geometry.camera import look, perspective, rotator_axes

FRAMES, HEIGHT, WIDTH = 5, 8, 12


def content():
    random = np.random.default_rng(0)
    level = np.arange(FRAMES, dtype=np.uint8) * 40
    capsules = random.uniform(-100, 100, (FRAMES, 2, 7)).astype(np.float32)
    capsules[..., 6] = abs(capsules[..., 6])
    capsules[1, 1] = np.nan
    poses = random.uniform(-100, 100, (FRAMES, 2, 3))
    lens = perspective(80, WIDTH / HEIGHT, 5.0)
    return {
        "frames": np.broadcast_to(level[:, None, None, None], (FRAMES, HEIGHT, WIDTH, 3)).copy(),
        "stencil": random.integers(0, 9, (FRAMES, HEIGHT, WIDTH), np.uint8),
        "cameras": np.stack([look(place, rotator_axes(*turn)) @ lens for place, turn in poses]),
        "skeletons": Skeletons(capsules, np.array([15, 16], np.uint8)),
        "meta": RunMeta(
            17.5, WIDTH, HEIGHT, (math.nan, 3.5), "cm", "perspective", "test", "engine 1"
        ),
        "tables": [
            ClipTable(5, {"a": "The player waits."}, (RawClip(0, ("a", "b"), ("fight",)),)),
        ],
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("raw") / "set/scene/run-000"
    write_run(run_dir, **content())
    return run_dir


@pytest.fixture
def run_dir(written, tmp_path):
    return shutil.copytree(written, tmp_path / "run-007")


def test_what_is_written_is_read(written):
    given = content()
    np.testing.assert_array_equal(read_stencil(written, 1, 3), given["stencil"][1:4])
    np.testing.assert_array_equal(read_cameras(written), given["cameras"])
    np.testing.assert_array_equal(read_cameras(written, 2, 2), given["cameras"][2:4])
    np.testing.assert_array_equal(read_skeletons(written).capsules, given["skeletons"].capsules)
    np.testing.assert_array_equal(read_skeletons(written, 1, 1).capsules[0, 1], np.nan)
    frames = read_frames(written, 2, 3)
    assert frames.dtype == np.uint8
    assert np.abs(frames.astype(int) - given["frames"][2:].astype(int)).max() <= 2  # JPEG
    assert frame_count(written) == FRAMES
    meta = read_meta(written)
    assert math.isnan(meta.ground_z[0])
    assert meta.ground_z[1:] == (3.5,)
    assert (meta.fps, meta.width, meta.height) == (17.5, WIDTH, HEIGHT)
    table = read_clips(written, 5)
    assert table == given["tables"][0]
    assert (table.prompt("a"), table.prompt("b")) == ("The player waits.", "b")


def test_bytes_repeat(written, tmp_path):
    write_run(tmp_path / "again", **content())
    names = sorted(path.name for path in written.iterdir())
    assert names == [
        "cameras.npz",
        "clips_5.json",
        "frames.tar",
        "meta.json",
        "skeletons.npz",
        "stencil.tar",
    ]
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (written / name).read_bytes(), name


def test_meta_json_is_strict(written):
    text = (written / "meta.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["ground_z"] == [None, 3.5]


def test_rewriting_leaves_nothing_of_the_earlier_run(run_dir):
    (run_dir / "frames.tar").rename(run_dir / "frames-000.tar")
    (run_dir / "clips_9.json").write_text("{}")
    write_run(run_dir, **content())
    assert frame_count(run_dir) == FRAMES
    assert not (run_dir / "clips_9.json").exists()


def test_a_failed_rewrite_leaves_no_complete_run(run_dir):
    broken = content() | {"cameras": np.zeros((FRAMES - 1, 4, 4))}
    with pytest.raises(ValueError, match="numbers of frames differ"):
        write_run(run_dir, **broken)
    assert not (run_dir / "meta.json").exists()


def test_an_index_serves_several_clips(written):
    index = index_frames(written)
    (first,), (last,) = (read_frames(written, at, 1, index=index) for at in (0, 4))
    assert first.mean() < 5
    assert abs(last.mean() - 160) < 5


def test_frames_beyond_the_run_are_named(written):
    with pytest.raises(UserError, match=r"run-000: frame 5 asked of frames\.tar, which holds 5"):
        read_frames(written, 3, 3)
    with pytest.raises(UserError, match=r"cameras\.npz: frames 3\.\.5 asked of 5"):
        read_cameras(written, 3, 3)


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_nan_of_a_python_writer_is_read(run_dir):
    edit_json(run_dir / "meta.json", ground_z=[math.nan], more="ignored")
    assert "NaN" in (run_dir / "meta.json").read_text()
    assert math.isnan(read_meta(run_dir).ground_z[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ground_z": [math.inf]}, "ground_z holds an infinity"),
        ({"units": "m"}, "units: Input should be 'cm'"),
        ({"fps": 0}, "fps: Input should be greater than 0"),
        ({"width": "wide"}, "width: Input should be a valid integer"),
        ({"projection": "fisheye"}, "projection: Input should be"),
        ({"fps": 1e-9}, "fps: Input should be greater than"),
        ({"fps": 1e6}, "fps: Input should be less than"),
        ({"width": 10**9}, "width: Input should be less than or equal to 16384"),
        ({"height": 16385}, "height: Input should be less than or equal to 16384"),
        ({"width": 8193, "height": 8192}, "pictures of 8193 by 8192, expected at most 67108864"),
    ],
)
def test_faults_of_meta(run_dir, changes, message):
    edit_json(run_dir / "meta.json", **changes)
    with pytest.raises(UserError, match=r"run-007/meta\.json: " + message):
        read_meta(run_dir)


def test_the_largest_picture_that_is_read(run_dir):
    edit_json(run_dir / "meta.json", width=16384, height=4096)
    assert read_meta(run_dir).width == 16384


def test_a_byte_order_mark_drops_no_run(run_dir):
    for name in ("meta.json", "clips_5.json"):
        path = run_dir / name
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert (read_meta(run_dir).width, read_clips(run_dir, 5)) == (WIDTH, content()["tables"][0])


def test_a_key_twice_is_refused(run_dir):
    for name, key in (("meta.json", "width"), ("clips_5.json", "a")):
        path = run_dir / name
        path.write_text(path.read_text().replace(f'"{key}":', f'"{key}": 9, "{key}":'))
        with pytest.raises(UserError, match=rf"{name}: .*'{key}' stands twice"):
            read_meta(run_dir) if name == "meta.json" else read_clips(run_dir, 5)


def test_missing_and_cut_json(run_dir):
    (run_dir / "meta.json").write_text('{"fps": 1')
    with pytest.raises(UserError, match=r"run-007/meta\.json: not readable as JSON"):
        read_meta(run_dir)
    with pytest.raises(UserError, match=r"run-007/clips_81\.json: not found"):
        read_clips(run_dir, 81)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"frames": 9}, "holds clips of 9 frames"),
        (
            {"clips": [{"start": 3, "text_keys": ["a"]}]},
            "the clip at frame 3 has 1 text keys, expected 2",
        ),
        ({"clips": [{"start": -1, "text_keys": ["a", "b"]}]}, "clips.0.start: Input should be"),
        ({"prompts": ["a"]}, "prompts: Input should be a valid dictionary"),
    ],
)
def test_faults_of_clips(run_dir, table, message):
    edit_json(run_dir / "clips_5.json", **table)
    with pytest.raises(UserError, match=r"run-007/clips_5\.json: " + message):
        read_clips(run_dir, 5)


def test_a_nan_camera_spoils_only_its_own_clips(run_dir):
    cameras = content()["cameras"]
    cameras[3, 1, 1] = np.nan
    np.savez(run_dir / "cameras.npz", world_to_clip=cameras)
    with pytest.raises(UserError, match=r"cameras\.npz: the camera of frame 3 holds NaN"):
        read_cameras(run_dir, 2, 2)
    np.testing.assert_array_equal(read_cameras(run_dir, 0, 3), cameras[:3])


@pytest.mark.parametrize(
    ("change", "said"),
    [(np.diag([1.0, 1, 1, -1]), "w below 0 in front"), (np.zeros((4, 4)), "singular")],
)
def test_a_camera_that_is_none_spoils_only_its_own_clips(run_dir, change, said):
    cameras = content()["cameras"]
    cameras[3] = cameras[3] @ change
    np.savez(run_dir / "cameras.npz", world_to_clip=cameras)
    with pytest.raises(UserError, match=rf"cameras\.npz: the camera of frame 3 .*{said}"):
        read_cameras(run_dir, 2, 2)
    assert len(read_cameras(run_dir, 0, 3)) == 3


@pytest.mark.parametrize("damage", [b"", b"not a zip", None])
def test_unreadable_npz(run_dir, damage):
    path = run_dir / "cameras.npz"
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(UserError, match=r"run-007/cameras\.npz: not readable as npz"):
        read_cameras(run_dir)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.zeros(3)}, "has no array 'world_to_clip'"),
        ({"world_to_clip": np.zeros((5, 3, 4))}, r"is float64 \[5, 3, 4\], expected numbers \[any"),
        ({"world_to_clip": np.full((5, 4, 4), "x")}, "expected numbers"),
    ],
)
def test_wrong_arrays(run_dir, arrays, message):
    np.savez(run_dir / "cameras.npz", **arrays)
    with pytest.raises(UserError, match=message):
        read_cameras(run_dir)


def test_pickled_arrays_are_not_loaded(run_dir):
    np.savez(run_dir / "cameras.npz", world_to_clip=np.array([{}], object))
    with pytest.raises(UserError, match="not readable as npz"):
        read_cameras(run_dir)


def test_faults_of_skeletons(run_dir):
    capsules = np.zeros((5, 1, 7), np.float32)
    np.savez(run_dir / "skeletons.npz", capsules=capsules, part=np.array([9], np.uint8))
    with pytest.raises(UserError, match=r"skeletons\.npz: part 9, expected 10\.\.21"):
        read_skeletons(run_dir)
    capsules[4] = np.inf
    np.savez(run_dir / "skeletons.npz", capsules=capsules, part=np.array([10], np.uint8))
    with pytest.raises(UserError, match="a capsule of frame 4 holds an infinity"):
        read_skeletons(run_dir)
    assert len(read_skeletons(run_dir, 0, 4).capsules) == 4


def test_a_radius_below_0_is_named_by_run_frame_and_capsule(run_dir):
    capsules = np.ones((5, 3, 7), np.float32)
    capsules[2, 1, 6], capsules[3, 0, 6] = -2.5, -1
    capsules[1, 0] = (np.nan, 0, 0, 0, 0, 0, -1)  # absent
    np.savez(run_dir / "skeletons.npz", capsules=capsules, part=np.full(3, 10, np.uint8))
    with pytest.raises(
        UserError, match=r"run-007/skeletons\.npz: capsule 1 of frame 2 has radius -2\.5"
    ):
        read_skeletons(run_dir)
    assert len(read_skeletons(run_dir, 0, 2).capsules) == 2


def test_unequal_numbers_of_frames_are_listed(run_dir):
    np.savez(run_dir / "cameras.npz", world_to_clip=np.zeros((4, 4, 4)))
    with pytest.raises(UserError, match=r"frames\.tar 5, stencil\.tar 5, cameras\.npz 4, skel"):
        frame_count(run_dir)
