"""The recorded frames of a clip, at the size that the model sees: what generated ones compare with.

The data set holds latents and ids only, so the frames are read from the raw capture again.
"""

from pathlib import Path

from gc25d.capture.raw.format import read_frames, read_meta
from gc25d.errors import UserError
from gc25d.geometry.resample import fit_crop, resample_frames
from gc25d.shapes import RgbFrames


def split_clip_id(clip_id: str) -> tuple[str, int]:
    """Run id and first frame of `<scene>__<run>__<start:06d>`.

    Raises:
        UserError: the id does not end in a frame number.
    """
    run_id, _, start = clip_id.rpartition("__")
    if not run_id or not start.isdecimal():
        raise UserError(f"clip id {clip_id!r}, expected <scene>__<run>__<start>")
    return run_id, int(start)


def find_run(raw_root: Path, run_id: str) -> Path:
    """The folder `<raw_root>/<subset>/<scene>/<run>` of a run id `<scene>__<run>`.

    Raises:
        UserError: there is none, or more than one.
    """
    folders = [
        meta.parent
        for meta in sorted(raw_root.glob("*/*/*/meta.json"))
        if f"{meta.parent.parent.name}__{meta.parent.name}" == run_id
    ]
    if len(folders) != 1:
        found = " and ".join(map(str, folders)) or "none"
        remedy = "rename one of the runs, or " if folders else ""
        raise UserError(
            f"run {run_id} below raw_root {raw_root}: found {found}, expected one folder "
            f"<subset>/<scene>/<run>: {remedy}point raw_root at the captures that the data was "
            "built from"
        )
    return folders[0]


def recorded_frames(
    raw_root: Path, clip_id: str, shape: tuple[int, int, int]
) -> tuple[RgbFrames, float]:
    """Recorded frames uint8 [T, H, W, 3] of a clip at `shape` (T, H, W), and their rate in 1/s.

    Raises:
        UserError: the run is not there, or a frame is missing or damaged.
    """
    run_id, start = split_clip_id(clip_id)
    run_dir = find_run(raw_root, run_id)
    count, height, width = shape
    meta = read_meta(run_dir)
    crop = fit_crop((meta.height, meta.width), (height, width))
    return resample_frames(read_frames(run_dir, start, count), crop), meta.fps
