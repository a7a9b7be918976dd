import io
import json
import logging
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from gc25d.capture.raw.format import read_cameras
from gc25d.errors import UserError
from gc25d.geometry.ground import ground_points
from gc25d.prep.encoders.dct import DctCodec
from gc25d.prep.prepare import prepare_run
from gc25d.prep.store import digest_tensor, unpack_ids

SHAPE = (5, 32, 32)  # the raw pictures are 48 × 80


def prepare(run_dir, run_id="maze__run-000"):
    return prepare_run(run_dir, run_id, *SHAPE, DctCodec)


def rewrite_tar(path, change):
    """Rewrite a tar with `change(number, bytes) → bytes or None` applied to each member."""
    with tarfile.open(path) as tar:
        members = [(info, tar.extractfile(info).read()) for info in tar]
    with tarfile.open(path, "w") as tar:
        for number, (info, data) in enumerate(members):
            if (data := change(number, data)) is not None:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_a_run_becomes_latents_ids_cameras_and_rows(tmp_path, raw_run):
    prepared = prepare(raw_run(tmp_path / "raw"))
    names = ["maze__run-000__000000", "maze__run-000__000005"]
    assert [row["clip_id"] for row in prepared.rows] == names
    assert list(prepared.latents) == names
    for name, row in zip(names, prepared.rows, strict=True):
        latents, packed = prepared.latents[name], prepared.ids[f"{name}.ids"]
        cameras = prepared.ids[f"{name}.world_to_clip"]
        assert (latents.shape, latents.dtype) == ((48, 2, 2, 2), torch.bfloat16)
        assert (cameras.shape, cameras.dtype) == ((5, 4, 4), torch.float64)
        assert set(np.unique(unpack_ids(packed, SHAPE))) == {0, 1, 11}
        assert row["digests"] == {
            "latents": digest_tensor(latents),
            "ids": digest_tensor(packed),
            "world_to_clip": digest_tensor(cameras),
        }
        assert row["prompts"] == {"go": "walk on", "stop": "stand still"}
        assert (row["text_keys"], row["ground_z"]) == (["go", "stop"], 6.0)  # median of 4 and 8
        assert (row["drop"], row["reason"], row["shape"]) == (False, "", [5, 32, 32])
        json.dumps(row, allow_nan=False)


def test_stretched_pictures_are_a_warning(tmp_path, raw_run, caplog):
    """48 rows become 64: 4/3. 96 columns come from 72 of the 80, so 4 are left on each side."""
    run = raw_run(tmp_path / "raw")
    with caplog.at_level(logging.WARNING):
        prepare_run(run, "maze__run-000", 5, 32, 64, DctCodec)
        assert caplog.text == ""
        prepare_run(run, "maze__run-000", 5, 64, 96, DctCodec)
    assert "run maze__run-000: its pictures are stretched (80x48 → 96x64: 4 columns" in caplog.text
    assert "scaled by 1.333" in caplog.text


def test_clips_take_their_own_frames(tmp_path, raw_run):
    """The clip at 5 is decoded near to frames 5..9 and not to 0..4."""
    run = raw_run(tmp_path / "raw")
    prepared = prepare(run)
    decoded = DctCodec().decode(prepared.latents["maze__run-000__000005"]).astype(float)
    with tarfile.open(run / "frames.tar") as tar:
        pictures = [np.asarray(Image.open(tar.extractfile(info))) for info in tar]
    # 48 × 80 → the centred square of 48 → 32: source pixel 1.5 (x + 0.5) + 16
    centres = (1.5 * (np.arange(32) + 0.5)).astype(int)
    small = [picture[centres][:, centres + 16].astype(float) for picture in pictures]
    error = [np.abs(decoded - np.stack(small[start : start + 5])).mean() for start in (5, 0)]
    assert error[0] < 8
    assert error[1] > 2 * error[0]


def test_cameras_fit_the_resampled_picture(tmp_path, raw_run):
    """A ground point is seen at the pixel to which crop and scale move it."""
    run = raw_run(tmp_path / "raw")
    raw = read_cameras(run)[0]
    small = prepare(run).ids["maze__run-000__000000.world_to_clip"][0].numpy()
    source, target = np.array([[30.5, 40.0]]), np.array([[(30.5 - 16) / 1.5, 40 / 1.5]])
    seen, _ = ground_points(raw, source, 0.0, 80, 48)
    again, _ = ground_points(small, target, 0.0, 32, 32)
    assert np.allclose(seen, again)


def test_preparing_twice_gives_equal_rows_wherever_the_run_lies(tmp_path, raw_run):
    rows = [prepare(raw_run(tmp_path / name)).rows for name in ("here", "there/deep")]
    assert rows[0] == rows[1]


def test_a_missing_frame_drops_its_clip_only(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    rewrite_tar(run / "frames.tar", lambda number, data: None if number == 7 else data)
    prepared = prepare(run)
    good, bad = prepared.rows
    assert not good["drop"]
    assert bad["drop"]
    assert "frame 7" in bad["reason"]
    assert str(tmp_path) not in bad["reason"]
    assert list(prepared.latents) == ["maze__run-000__000000"]
    assert all(name.startswith("maze__run-000__000000") for name in prepared.ids)


@pytest.mark.parametrize("name", ["frames.tar", "stencil.tar"])
def test_a_damaged_picture_drops_its_clip_only(tmp_path, raw_run, name):
    run = raw_run(tmp_path / "raw")
    rewrite_tar(run / name, lambda number, data: data[:40] if number == 2 else data)
    bad, good = prepare(run).rows
    assert bad["drop"]
    assert "frame 2" in bad["reason"]
    assert not good["drop"]


def test_a_camera_with_nan_drops_its_clip_only(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    with np.load(run / "cameras.npz") as archive:
        cameras = archive["world_to_clip"]
    cameras[8, 0, 0] = np.nan
    np.savez(run / "cameras.npz", world_to_clip=cameras)
    good, bad = prepare(run).rows
    assert not good["drop"]
    assert bad["drop"]
    assert "frame 8" in bad["reason"]


def test_singular_cameras_drop_their_clip_only(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    with np.load(run / "cameras.npz") as archive:
        cameras = archive["world_to_clip"]
    cameras[:5] = 0
    np.savez(run / "cameras.npz", world_to_clip=cameras)
    bad, good = prepare(run).rows
    assert bad["drop"]
    assert not good["drop"]


def test_a_clip_behind_the_end_is_dropped(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    table = json.loads((run / "clips_5.json").read_text())
    table["clips"].append({**table["clips"][0], "start": 10})
    (run / "clips_5.json").write_text(json.dumps(table))
    rows = prepare(run).rows
    assert [row["drop"] for row in rows] == [False, False, True]


def relist(run, change):
    """Rewrite the table of clips with `change(clips)`."""
    table = json.loads((run / "clips_5.json").read_text())
    change(table["clips"])
    (run / "clips_5.json").write_text(json.dumps(table))


def test_a_clip_listed_twice_alike_is_taken_once(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    relist(run, lambda clips: clips.append(clips[0]))
    rows = prepare(run).rows
    assert [(row["start"], row["drop"]) for row in rows] == [(0, False), (5, False)]
    assert [row["faults"] for row in rows] == [["is listed 2 times"], []]


def test_a_clip_listed_twice_with_different_keys_is_dropped(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    relist(run, lambda clips: clips.append({**clips[0], "text_keys": ["stop", "stop"]}))
    bad, good = prepare(run).rows
    assert bad["drop"]
    assert "frame 0 is listed twice with different text keys or flags" in bad["reason"]
    assert not good["drop"]


def test_clips_that_overlap_are_kept_and_named(tmp_path, raw_run):
    """5 frames from 0, 3 and 5: the second shares 3..4, the third 5..7 with the second."""
    run = raw_run(tmp_path / "raw")
    relist(run, lambda clips: clips.append({**clips[0], "start": 3}))
    rows = prepare(run).rows
    assert not any(row["drop"] for row in rows)
    assert {row["start"]: row["faults"] for row in rows} == {
        0: [],
        3: ["shares frames 3..4 with the clip at frame 0"],
        5: ["shares frames 5..7 with the clip at frame 3"],
    }


@pytest.mark.parametrize("name", ["meta.json", "frames.tar", "clips_5.json"])
def test_an_unreadable_run_becomes_one_row(tmp_path, raw_run, name, caplog):
    run = raw_run(tmp_path / "raw")
    (run / name).write_bytes(b"\0 no such thing")
    prepared = prepare(run)
    assert prepared.latents == prepared.ids == {}
    (row,) = prepared.rows
    assert (row["run"], row["drop"]) == ("maze__run-000", True)
    assert name in row["reason"]
    assert str(tmp_path) not in row["reason"]
    assert "maze__run-000" in caplog.text


@pytest.mark.parametrize("number", [0, 11])
def test_frames_and_stencil_must_be_the_same_ones(tmp_path, raw_run, number):
    run = raw_run(tmp_path / "raw")
    rewrite_tar(run / "stencil.tar", lambda at, data: None if at == number else data)
    (row,) = prepare(run).rows
    assert "stencil.tar 11" in row["reason"]


def test_the_reserved_key_is_the_empty_prompt(tmp_path, raw_run):
    run = raw_run(tmp_path / "raw")
    table = json.loads((run / "clips_5.json").read_text())
    table["clips"][0]["text_keys"] = ["NULL_PROMPT", "unlisted"]
    (run / "clips_5.json").write_text(json.dumps(table))
    assert prepare(run).rows[0]["prompts"] == {"NULL_PROMPT": "", "unlisted": "unlisted"}


def test_latents_that_are_not_finite_are_an_error_that_names_the_clip(tmp_path, raw_run):
    class Broken(DctCodec):
        def encode(self, frames):
            latents = super().encode(frames)
            latents[3, 1, 0, 1] = torch.inf
            return latents

    with pytest.raises(UserError, match="clip maze__run-000__000000: latents: 1 of 384 values"):
        prepare_run(raw_run(tmp_path / "raw"), "maze__run-000", *SHAPE, Broken)


def test_a_fault_of_the_settings_is_no_fault_of_the_run(tmp_path, raw_run):
    """An encoder that cannot work at all is not hidden as dropped clips."""

    class Faulty(DctCodec):
        def encode(self, frames):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        prepare_run(raw_run(tmp_path / "raw"), "maze__run-000", *SHAPE, Faulty)
