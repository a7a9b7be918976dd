"""Each fault of a raw capture through the real steps: named, the rest built, refused by strict.

The policies are those of docs/dataset.md.
"""

import io
import json
import tarfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gc25d.capture.format import read_frames
from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.records import read_json, read_jsonl, write_json
from gc25d.steps import build_index, encode_text, prep_run

GEOMETRY = {"frames": 5, "height": 32, "width": 32}
BAD, GOOD, VAL = (f"maze__run-{number:03d}" for number in range(3))
FIRST, SECOND = f"{BAD}__000000", f"{BAD}__000005"


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(info.name, tar.extractfile(info).read()) for info in tar]


def write_members(path: Path, content: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in content:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def change_frame(run: Path, frame: int, change: Callable[[bytes], bytes]) -> None:
    content = members(run / "frames.tar")
    content[frame] = (content[frame][0], change(content[frame][1]))
    write_members(run / "frames.tar", content)


def no_class(run: Path) -> None:
    content = members(run / "stencil.tar")
    buffer = io.BytesIO()
    Image.fromarray(np.full((48, 80), 9, np.uint8)).save(buffer, "PNG")
    content[6] = (content[6][0], buffer.getvalue())
    write_members(run / "stencil.tar", content)


def infinite_capsule(run: Path) -> None:
    with np.load(run / "skeletons.npz") as archive:
        arrays = dict(archive)
    arrays["capsules"][8, 0, 2] = np.inf
    np.savez(run / "skeletons.npz", **arrays)


def renumbered(run: Path) -> None:
    for name in ("frames.tar", "stencil.tar"):
        moved = [(f"{int(n[:6]) + 5:06d}{n[6:]}", data) for n, data in members(run / name)]
        write_members(run / name, moved)


def in_parts_with_a_gap(run: Path) -> None:
    content = members(run / "frames.tar")
    (run / "frames.tar").unlink()
    write_members(run / "frames-000.tar", content[:6])
    write_members(run / "frames-002.tar", content[6:])


def flat_cameras(cameras: np.ndarray) -> np.ndarray:
    cameras[:5] = 0
    return cameras


def change_cameras(run: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.load(run / "cameras.npz") as archive:
        cameras = archive["world_to_clip"].copy()
    np.savez(run / "cameras.npz", world_to_clip=change(cameras))


def change_clips(run: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    table = json.loads((run / "clips_5.json").read_text())
    table["clips"] = change(table["clips"])
    (run / "clips_5.json").write_text(json.dumps(table))


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


def gap(run: Path) -> None:
    write_members(run / "frames.tar", [m for m in members(run / "frames.tar") if "07" not in m[0]])


def duplicate_number(run: Path) -> None:
    content = members(run / "frames.tar")
    write_members(run / "frames.tar", [*content, ("again/000003.jpg", content[3][1])])


def fewer(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        write_members(run / name, members(run / name)[:-1])

    return change


def cut(name: str, to: float) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        data = (run / name).read_bytes()
        (run / name).write_bytes(data[: int(len(data) * to)])

    return change


def flip(name: str) -> Callable[[Path], None]:
    """Damage bytes in the middle of a file."""

    def change(run: Path) -> None:
        data = bytearray((run / name).read_bytes())
        middle = len(data) // 2
        data[middle : middle + 40] = bytes(byte ^ 0xFF for byte in data[middle : middle + 40])
        (run / name).write_bytes(data)

    return change


def missing(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def pickled(run: Path) -> None:
    np.savez(run / "cameras.npz", world_to_clip=np.array([{}], dtype=object))


Change = Callable[[Path], None]
# A fault of one clip: what is done, the clip that is dropped, and what its reason says.
CLIP_FAULTS: dict[str, tuple[Change, str, str]] = {
    "gap": (gap, SECOND, "frame 7"),
    "truncated JPEG": (lambda run: change_frame(run, 2, lambda d: d[:-30]), FIRST, "frame 2"),
    "no JPEG": (lambda run: change_frame(run, 2, lambda d: b"?" * 9), FIRST, "frame 2"),
    "empty picture": (lambda run: change_frame(run, 2, lambda d: b""), FIRST, "frame 2"),
    "small picture": (
        lambda run: change_frame(run, 2, lambda d: as_jpeg(d, lambda i: i.resize((40, 24)))),
        FIRST,
        "picture of 40 by 24",
    ),
    "NaN camera": (lambda run: change_cameras(run, nan_camera), SECOND, "camera of frame 7"),
    "camera of zeros": (lambda run: change_cameras(run, flat_cameras), FIRST, "ingular"),
    "stencil of no class": (no_class, SECOND, "stencil class 9"),
    "infinite capsule": (infinite_capsule, SECOND, "capsule of frame 8"),
    "clip behind the end": (
        lambda run: change_clips(run, lambda c: [c[0], {**c[1], "start": 9}]),
        f"{BAD}__000009",
        "12",
    ),
    "clip listed twice, differently": (
        lambda run: change_clips(run, lambda c: [*c, {**c[0], "text_keys": ["stop", "stop"]}]),
        FIRST,
        "listed twice with different text keys",
    ),
}  # fmt: skip
# A fault of the whole run, and what its reason says.
RUN_FAULTS: dict[str, tuple[Change, str]] = {
    "frame number twice": (duplicate_number, "occurs twice"),
    "numbers from 5": (renumbered, "starts at number 5"),
    "part missing": (in_parts_with_a_gap, "frames-001.tar is missing"),
    "frames without stencil": (fewer("stencil.tar"), "stencil.tar 11"),
    "fewer frames": (fewer("frames.tar"), "frames.tar 11"),
    "fewer cameras": (lambda run: change_cameras(run, lambda c: c[:-1]), "cameras.npz 11"),
    "cut tar": (cut("frames.tar", 0.5), "frames.tar"),
    "empty tar": (cut("frames.tar", 0), "frames.tar"),
    "tar of nothing": (lambda run: write_members(run / "frames.tar", []), "holds no picture"),
    "cut npz": (cut("cameras.npz", 0.5), "cameras.npz"),
    "empty npz": (cut("skeletons.npz", 0), "skeletons.npz"),
    "damaged npz": (flip("cameras.npz"), "cameras.npz"),
    "pickled npz": (pickled, "cameras.npz"),
    "no stencil": (missing("stencil.tar"), "no stencil.tar"),
    "no skeletons": (missing("skeletons.npz"), "skeletons.npz: not found"),
    "no clips file": (missing("clips_5.json"), "clips_5.json: not found"),
    "no clips": (lambda run: change_clips(run, lambda clips: []), "lists no clip"),
    "clip before the start": (
        lambda run: change_clips(run, lambda c: [{**c[0], "start": -1}]), "clips.0.start",
    ),
    "too few text keys": (
        lambda run: change_clips(run, lambda c: [{**c[0], "text_keys": ["go"]}]), "1 text keys",
    ),
    "meta of zero size": (
        lambda run: write_json(run / "meta.json", {**read_json(run / "meta.json"), "width": 0}),
        "meta.json: width",
    ),
    "meta cut": (cut("meta.json", 0.5), "meta.json"),
}  # fmt: skip
# Odd, yet used: what the clip that is kept is said to have.
REMARKS: dict[str, tuple[Change, str, str]] = {
    "clip listed twice alike": (
        lambda run: change_clips(run, lambda c: [*c, c[0]]), FIRST, "is listed 2 times",
    ),
    "clips overlap": (
        lambda run: change_clips(run, lambda c: [c[0], {**c[1], "start": 3}]),
        f"{BAD}__000003",
        "shares frames 3..4 with the clip at frame 0",
    ),
}  # fmt: skip
# No fault at all: the pictures are brought into the stated form.
ACCEPTED: dict[str, Change] = {
    "wrong order in the tar": lambda run: write_members(
        run / "frames.tar", members(run / "frames.tar")[::-1]
    ),
    "EXIF-turned JPEG": lambda run: change_frame(run, 2, turned),
    "CMYK JPEG": lambda run: change_frame(
        run, 2, lambda d: as_jpeg(d, lambda i: i.convert("CMYK"))
    ),
    "grey JPEG": lambda run: change_frame(run, 2, lambda d: as_jpeg(d, lambda i: i.convert("L"))),
}


@pytest.fixture
def build(tmp_path, raw_run):
    """Builds three runs whose first was changed; returns the data folder."""

    def build(change: Change, strict: bool = False) -> Path:
        root = tmp_path / "data"
        text = {"encoder": "bytes", "dir": "", "length": 16, "dim": 8}
        write_json(root / "prep.json", {"geometry": GEOMETRY, "codec": "dct", "codec_dir": ""})
        write_json(root / "text.json", {"text": text})
        rows = []
        for seed, run in enumerate((BAD, GOOD, VAL)):
            folder = tmp_path / "raw/maze" / run.removeprefix("maze__")
            if not folder.exists():
                raw_run(folder, seed=seed)
                if run == BAD:
                    change(folder)
            rows.append(root / f"index/runs/{run}.jsonl")
            tensors = {name: root / f"{name}/{run}.safetensors" for name in ("latents", "ids")}
            whose = {"run_id": run, "raw": folder, "workers": 0}
            prep_run.main(Namespace(settings=root / "prep.json", rows=rows[-1], **whose, **tensors))
        table = root / "text/table.safetensors"
        encode_text.main(Namespace(settings=root / "text.json", rows=rows, out=table))
        join(root, rows, strict)
        return root

    return build


def join(root: Path, rows: list[Path], strict: bool, buried: tuple[str, ...] = ()) -> None:
    index = {"val_runs": [VAL], "buried": buried, "limit": 0, "limit_seed": 0, "strict": strict}
    batch = {"global_batch": 2, "grad_accum": 1}
    write_json(root / "index.json", {"geometry": GEOMETRY, **index, **batch})
    build_index.main(
        Namespace(
            settings=root / "index.json", rows=rows, table=root / "text/table.safetensors",
            root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
        )
    )  # fmt: skip


def usable(root: Path) -> list[str]:
    splits = (ClipDataset(root, "train"), ClipDataset(root, "val"))
    return [data.sample(0, i).clip_id for data in splits for i in range(len(data))]


def others(*names: str) -> list[str]:
    """All clips of the set but these, as `usable` lists them."""
    every = [f"{run}__{start:06d}" for run in (BAD, GOOD, VAL) for start in (0, 5)]
    return [name for name in every if name not in names]


def rejoin_strictly(root: Path) -> str:
    """What strict says of a set that was built without it."""
    for name in ("READY", "index/clips.jsonl"):
        (root / name).unlink()
    with pytest.raises(UserError) as refused:
        join(root, sorted((root / "index/runs").iterdir()), strict=True)
    assert not (root / "READY").exists()
    return str(refused.value)


@pytest.mark.parametrize("fault", CLIP_FAULTS)
def test_a_faulty_clip_is_dropped_by_name(build, fault):
    change, clip_id, said = CLIP_FAULTS[fault]
    root = build(change)
    dropped = {
        r["clip_id"]: r["reason"] for r in read_jsonl(root / "index/clips.jsonl") if r["drop"]
    }
    assert list(dropped) == [clip_id]
    assert said in dropped[clip_id]
    gone = (clip_id, SECOND) if clip_id.endswith("9") else (clip_id,)  # moved from 5 to 9
    assert usable(root) == others(*gone)
    refused = rejoin_strictly(root)
    assert refused.startswith("1 faults")
    assert f"{clip_id}: {dropped[clip_id]}" in refused


@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_faulty_run_is_left_out_by_name(build, fault):
    change, said = RUN_FAULTS[fault]
    root = build(change)
    failed = read_json(root / "READY")["failed_runs"]
    assert list(failed) == [BAD]
    assert said in failed[BAD]
    assert usable(root) == others(FIRST, SECOND)
    refused = rejoin_strictly(root)
    assert refused.startswith("1 faults")
    assert f"{BAD}: {failed[BAD]}" in refused


@pytest.mark.parametrize("fault", REMARKS)
def test_an_odd_listing_is_used_and_named(build, fault):
    change, clip_id, said = REMARKS[fault]
    root = build(change)
    rows = {row["clip_id"]: row for row in read_jsonl(root / "index/clips.jsonl")}
    assert {name: row["faults"] for name, row in rows.items() if row["faults"]} == {clip_id: [said]}
    assert clip_id in usable(root)
    assert len(usable(root)) == 6
    assert f"{clip_id}: {said}" in rejoin_strictly(root)


@pytest.mark.parametrize("change", ACCEPTED)
def test_pictures_in_another_form_are_no_fault(build, change, raw_run, tmp_path):
    """Strict builds, and the changed frame still shows the plain run's picture (as grey, if grey).

    The pictures are smooth waves of amplitude 110; saving a JPEG again moves a pixel by a few.
    """
    root = build(ACCEPTED[change], strict=True)
    assert usable(root) == others()
    found = read_frames(tmp_path / "raw/maze/run-000", 0, 5)[2].astype(int)
    plain = read_frames(raw_run(tmp_path / "plain", seed=0), 0, 5)[2].astype(int)
    if change == "grey JPEG":
        assert (found == found[..., :1]).all()
        plain = plain @ [0.299, 0.587, 0.114]  # ITU-R 601 luma, JPEG's own
        found = found[..., 0]
    assert np.abs(found - plain).mean() < 3


def test_strict_passes_a_sound_set_and_one_whose_faults_are_buried(build):
    root = build(gap)
    rows = sorted((root / "index/runs").iterdir())
    with pytest.raises(UserError, match=f"1 faults.*\n  {SECOND}: "):
        join(root, rows, strict=True)
    join(root, rows, strict=True, buried=(SECOND,))
    assert read_json(root / "READY")["faults"] == 0


def test_strict_refuses_equal_clips_in_both_splits(build, raw_run):
    """The first run's pictures are the validation run's own: seed 2."""
    root = build(lambda run: raw_run(run, seed=2))
    assert read_json(root / "READY")["faults"] == 2
    assert f"{VAL}__000005: has the latents of {SECOND} (train)" in rejoin_strictly(root)
