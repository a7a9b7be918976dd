import numpy as np
import pytest

from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, Skeletons, read_frames
from gc25d.capture.raw.write import write_run
from gc25d.errors import UserError
from gc25d.evaluate.truth import find_run, recorded_frames, split_clip_id


def write_raw(folder, frames: np.ndarray) -> None:
    count, height, width, _ = frames.shape
    write_run(
        folder,
        frames=list(frames),
        stencil=[np.ones((height, width), np.uint8)] * count,
        cameras=np.tile(np.eye(4), (count, 1, 1)),
        skeletons=Skeletons(np.zeros((count, 0, 7), np.float32), np.zeros(0, np.uint8)),
        meta=RunMeta(12.5, width, height, (0.0,), "cm", "perspective", "test", "none"),
        tables=[ClipTable(5, {}, (RawClip(3, ("a", "b")),))],
    )


def test_a_clip_id_is_split_at_its_last_part():
    assert split_clip_id("my__scene__run-003__000017") == ("my__scene__run-003", 17)
    for bad in ("run-003", "scene__run-003__x", "__000001", ""):
        with pytest.raises(UserError, match="expected <scene>__<run>__<start>"):
            split_clip_id(bad)


def test_frames_of_the_clip_at_the_model_s_size(tmp_path):
    # Frame t is a flat colour 20·t, so size and order can be told from the values.
    frames = np.stack([np.full((64, 96, 3), 20 * t, np.uint8) for t in range(9)])
    write_raw(tmp_path / "sub/hall/run-1", frames)
    found, fps = recorded_frames(tmp_path, "hall__run-1__000003", (5, 32, 32))
    assert fps == 12.5
    assert found.shape == (5, 32, 32, 3)
    np.testing.assert_allclose(found[:, 16, 16, 0], [60, 80, 100, 120, 140], atol=2)


def test_frames_at_their_own_size_are_untouched(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (4, 32, 64, 3), dtype=np.uint8)
    write_raw(tmp_path / "sub/hall/run-1", frames)
    found, _ = recorded_frames(tmp_path, "hall__run-1__000001", (3, 32, 64))
    np.testing.assert_array_equal(found, read_frames(tmp_path / "sub/hall/run-1", 1, 3))


def test_a_missing_or_ambiguous_run_is_named(tmp_path):
    frames = np.zeros((1, 32, 32, 3), np.uint8)
    with pytest.raises(UserError, match=r"hall__run-1 below raw_root .*: found none"):
        find_run(tmp_path, "hall__run-1")
    write_raw(tmp_path / "a/hall/run-1", frames)
    assert find_run(tmp_path, "hall__run-1") == tmp_path / "a/hall/run-1"
    write_raw(tmp_path / "b/hall/run-1", frames)
    with pytest.raises(UserError, match=r"a/hall/run-1 and .*b/hall/run-1.*rename one"):
        find_run(tmp_path, "hall__run-1")
