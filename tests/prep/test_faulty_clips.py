"""Each fault of a clip through the real steps: named, the rest built, refused by strict.

The policies are those of docs/dataset.md.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gc25d.capture.raw.format import read_frames
from gc25d.errors import UserError
from gc25d.records import read_json, read_jsonl

BAD, VAL = "maze__run-000", "maze__run-002"
FIRST, SECOND = f"{BAD}__000000", f"{BAD}__000005"
Change = Callable[[Any], None]  # of the fixture's `RawFolder`


def gap(run) -> None:
    run.write_members("frames.tar", [m for m in run.members("frames.tar") if "07" not in m[0]])


def no_class(run) -> None:
    content = run.members("stencil.tar")
    buffer = io.BytesIO()
    Image.fromarray(np.full((48, 80), 9, np.uint8)).save(buffer, "PNG")
    content[6] = (content[6][0], buffer.getvalue())
    run.write_members("stencil.tar", content)


def infinite_capsule(run) -> None:
    with np.load(run.path / "skeletons.npz") as archive:
        arrays = dict(archive)
    arrays["capsules"][8, 0, 2] = np.inf
    np.savez(run.path / "skeletons.npz", **arrays)


def flat_cameras(cameras: np.ndarray) -> np.ndarray:
    cameras[:5] = 0
    return cameras


def as_jpeg(data: bytes, convert: Callable[[Image.Image], Image.Image], **options) -> bytes:
    buffer = io.BytesIO()
    convert(Image.open(io.BytesIO(data))).save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue()


def turned(data: bytes) -> bytes:
    """The same picture stored on its side, with the EXIF orientation that sets it upright."""
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees clockwise to view"
    return as_jpeg(data, lambda image: image.rotate(90, expand=True), exif=exif.tobytes())


def nan_camera(cameras: np.ndarray) -> np.ndarray:
    cameras[7, 0, 0] = np.nan
    return cameras


# A fault of one clip: what is done, the clip that is dropped, and what its reason says.
CLIP_FAULTS: dict[str, tuple[Change, str, str]] = {
    "gap": (gap, SECOND, "frame 7"),
    "truncated JPEG": (lambda run: run.change_frame(2, lambda d: d[:-30]), FIRST, "frame 2"),
    "no JPEG": (lambda run: run.change_frame(2, lambda d: b"?" * 9), FIRST, "frame 2"),
    "empty picture": (lambda run: run.change_frame(2, lambda d: b""), FIRST, "frame 2"),
    "small picture": (
        lambda run: run.change_frame(2, lambda d: as_jpeg(d, lambda i: i.resize((40, 24)))),
        FIRST,
        "picture of 40 by 24",
    ),
    "NaN camera": (lambda run: run.change_cameras(nan_camera), SECOND, "camera of frame 7"),
    "camera of zeros": (lambda run: run.change_cameras(flat_cameras), FIRST, "ingular"),
    "stencil of no class": (no_class, SECOND, "stencil class 9"),
    "infinite capsule": (infinite_capsule, SECOND, "capsule of frame 8"),
    "clip behind the end": (
        lambda run: run.change_clips(lambda c: [c[0], {**c[1], "start": 9}]),
        f"{BAD}__000009",
        "12",
    ),
    "clip listed twice, differently": (
        lambda run: run.change_clips(lambda c: [*c, {**c[0], "text_keys": ["stop", "stop"]}]),
        FIRST,
        "listed twice with different text keys",
    ),
}  # fmt: skip

# Odd, yet used: what the clip that is kept is said to have.
REMARKS: dict[str, tuple[Change, str, str]] = {
    "clip listed twice alike": (
        lambda run: run.change_clips(lambda c: [*c, c[0]]), FIRST, "is listed 2 times",
    ),
    "clips overlap": (
        lambda run: run.change_clips(lambda c: [c[0], {**c[1], "start": 3}]),
        f"{BAD}__000003",
        "shares frames 3..4 with the clip at frame 0",
    ),
}  # fmt: skip
# No fault at all: the pictures are brought into the stated form.
ACCEPTED: dict[str, Change] = {
    "wrong order in the tar": lambda run: run.write_members(
        "frames.tar", run.members("frames.tar")[::-1]
    ),
    "EXIF-turned JPEG": lambda run: run.change_frame(2, turned),
    "CMYK JPEG": lambda run: run.change_frame(2, lambda d: as_jpeg(d, lambda i: i.convert("CMYK"))),
    "grey JPEG": lambda run: run.change_frame(2, lambda d: as_jpeg(d, lambda i: i.convert("L"))),
}


@pytest.mark.parametrize("fault", CLIP_FAULTS)
def test_a_faulty_clip_is_dropped_by_name(captures, fault):
    change, clip_id, said = CLIP_FAULTS[fault]
    root = captures.build(change)
    dropped = {
        r["clip_id"]: r["reason"] for r in read_jsonl(root / "index/clips.jsonl") if r["drop"]
    }
    assert list(dropped) == [clip_id]
    assert said in dropped[clip_id]
    gone = (clip_id, SECOND) if clip_id.endswith("9") else (clip_id,)  # moved from 5 to 9
    assert captures.usable() == captures.others(*gone)
    refused = captures.rejoin_strictly()
    assert refused.startswith("1 faults")
    assert f"{clip_id}: {dropped[clip_id]}" in refused


@pytest.mark.parametrize("fault", REMARKS)
def test_an_odd_listing_is_used_and_named(captures, fault):
    change, clip_id, said = REMARKS[fault]
    root = captures.build(change)
    rows = {row["clip_id"]: row for row in read_jsonl(root / "index/clips.jsonl")}
    assert {name: row["faults"] for name, row in rows.items() if row["faults"]} == {clip_id: [said]}
    assert clip_id in captures.usable()
    assert len(captures.usable()) == 6
    assert f"{clip_id}: {said}" in captures.rejoin_strictly()


@pytest.mark.parametrize("change", ACCEPTED)
def test_pictures_in_another_form_are_no_fault(captures, change, raw_run, tmp_path):
    """Strict builds, and the changed frame still shows the plain run's picture (as grey, if grey).

    The pictures are smooth waves of amplitude 110; saving a JPEG again moves a pixel by a few.
    """
    captures.build(ACCEPTED[change], strict=True)
    assert captures.usable() == captures.others()
    found = read_frames(tmp_path / "raw/maze/run-000", 0, 5)[2].astype(int)
    plain = read_frames(raw_run(tmp_path / "plain", seed=0), 0, 5)[2].astype(int)
    if change == "grey JPEG":
        assert (found == found[..., :1]).all()
        plain = plain @ [0.299, 0.587, 0.114]  # ITU-R 601 luma, JPEG's own
        found = found[..., 0]
    assert np.abs(found - plain).mean() < 3


def test_strict_passes_a_sound_set_and_one_whose_faults_are_buried(captures):
    root = captures.build(gap)
    rows = sorted((root / "index/runs").iterdir())
    with pytest.raises(UserError, match=f"1 faults.*\n  {SECOND}: "):
        captures.join(rows, strict=True)
    captures.join(rows, strict=True, buried=(SECOND,))
    assert read_json(root / "READY")["faults"] == 0


def test_strict_refuses_equal_clips_in_both_splits(captures, raw_run):
    """The first run's pictures are the validation run's own: seed 2."""
    root = captures.build(lambda run: raw_run(run.path, seed=2))
    assert read_json(root / "READY")["faults"] == 2
    assert f"{VAL}__000005: has the latents of {SECOND} (train)" in captures.rejoin_strictly()
