"""A raw run's clips at their final size: frames, and beside them packed ids, cameras and a row."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from gc25d.capture.format import (
    ClipTable,
    RawClip,
    RunMeta,
    frame_count,
    index_frames,
    index_stencil,
    read_cameras,
    read_clips,
    read_frames,
    read_meta,
    read_skeletons,
    read_stencil,
)
from gc25d.capture.tars import Series
from gc25d.errors import UserError
from gc25d.geometry.ground import ground_plane
from gc25d.geometry.resample import (
    View,
    fit_view,
    resample_cameras,
    resample_frames,
    resample_stencil,
)
from gc25d.prep.faults import check_listing, listing_faults
from gc25d.prep.parts import LAST_STATIC, part_ids
from gc25d.prep.store import digest_tensor, pack_ids
from gc25d.prep.text import NULL_PROMPT
from gc25d.shapes import RgbFrames, SemIds, WorldToClip

Row = dict[str, Any]
_BLOCK = 9  # pictures held at the capture's own size


@dataclass(frozen=True)
class RawRun:
    """A raw run, opened: everything but its pictures."""

    run_dir: Path
    run_id: str
    meta: RunMeta
    table: ClipTable
    frames: Series
    stencil: Series
    view: View
    """From a captured picture to the clip's size."""

    @classmethod
    def open(cls, run_dir: Path, run_id: str, frames: int, height: int, width: int) -> Self:
        """Open a run for clips of `frames` × `height` × `width`.

        Raises:
            UserError: a file that all clips need is missing or damaged, or frames, stencil, cameras
                and skeletons differ in number.
        """
        meta = read_meta(run_dir)
        frame_count(run_dir)
        pictures, stencil = index_frames(run_dir), index_stencil(run_dir)
        view = fit_view((meta.height, meta.width), (height, width))
        table = read_clips(run_dir, frames)
        if not table.clips:
            raise UserError(
                f"{run_dir}: clips_{frames}.json lists no clip: list some, or remove the run"
            )
        return cls(run_dir, run_id, meta, table, pictures, stencil, view)

    @property
    def frames_shape(self) -> tuple[int, int, int, int]:
        """Shape [T, H, W, 3] of a clip's frames."""
        return (self.table.frames, *self.view.target_hw, 3)

    def clip_id(self, clip: RawClip) -> str:
        """`<scene>__<run>__<start>`, the start in six digits."""
        return f"{self.run_id}__{clip.start:06d}"

    def prompt(self, key: str) -> str:
        """The prompt of a text key; NULL_PROMPT is the empty one unless the run says otherwise."""
        known = key in self.table.prompts or key != NULL_PROMPT
        return self.table.prompt(key) if known else ""

    def clips(self) -> list[RawClip]:
        """The clips in the order of their starts; one listed twice is taken once."""
        by_start = {clip.start: clip for clip in reversed(self.table.clips)}
        return [by_start[start] for start in sorted(by_start)]


@dataclass(frozen=True)
class ReadClip:
    """What was read of a clip beside its frames; of a dropped clip only the row."""

    row: Row
    packed_ids: np.ndarray | None = None
    """uint8 [bytes], see `gc25d.prep.store.pack_ids`."""
    world_to_clip: WorldToClip | None = None


def read_clip(run: RawRun, clip: RawClip, frames: RgbFrames) -> ReadClip:
    """Read a clip, its pictures into `frames` [T, H, W, 3]; one that cannot be read is dropped."""
    try:
        check_listing(clip, run.table.clips)
        return _read(run, clip, frames)
    except (UserError, OSError, np.linalg.LinAlgError) as error:
        reason = reason_of(error, run.run_dir, run.run_id)
        return ReadClip(_row(run, clip) | {"drop": True, "reason": reason})


def _read(run: RawRun, clip: RawClip, frames: RgbFrames) -> ReadClip:
    start, count = clip.start, run.table.frames
    stencil = np.empty(frames.shape[:3], np.uint8)
    for begin, end in _blocks(count):
        block = read_stencil(run.run_dir, start + begin, end - begin, index=run.stencil)
        stencil[begin:end] = resample_stencil(block, run.view)
    for begin, end in _blocks(count):
        pictures = read_frames(run.run_dir, start + begin, end - begin, index=run.frames)
        frames[begin:end] = resample_frames(pictures, run.view)
    cameras = resample_cameras(read_cameras(run.run_dir, start, count), run.view)
    skeletons = read_skeletons(run.run_dir, start, count)
    sem_ids = part_ids(stencil, cameras, skeletons.capsules, skeletons.part)
    return _packed(run, clip, sem_ids, np.ascontiguousarray(cameras))


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, _BLOCK):
        yield begin, min(begin + _BLOCK, count)


def _packed(run: RawRun, clip: RawClip, sem_ids: SemIds, cameras: WorldToClip) -> ReadClip:
    packed = pack_ids(sem_ids)
    row = _row(run, clip) | {
        "prompts": {key: run.prompt(key) for key in sorted(set(clip.text_keys))},
        "static_share": round(float((sem_ids <= LAST_STATIC).mean()), 6),
        "character_share": round(float((sem_ids > LAST_STATIC).mean()), 6),
        "digests": {
            "ids": digest_tensor(packed),
            "world_to_clip": digest_tensor(torch.from_numpy(cameras)),
        },
    }
    return ReadClip(row, packed.numpy(), cameras)


def _row(run: RawRun, clip: RawClip) -> Row:
    """What is known of a clip before its pictures are read."""
    return {
        "clip_id": run.clip_id(clip),
        "run": run.run_id,
        "start": clip.start,
        "shape": [run.table.frames, *run.view.target_hw],
        "drop": False,
        "reason": "",
        "faults": listing_faults(clip, run.table.clips, run.table.frames),
        "flags": list(clip.flags),
        "text_keys": list(clip.text_keys),
        "prompts": {},
        "ground_z": ground_plane(run.meta.ground_z),
        "digests": {},
    }


def reason_of(error: Exception, run_dir: Path, run_id: str) -> str:
    """The message without the run's folder, so that equal data give equal rows anywhere."""
    return str(error).replace(str(run_dir), run_id)
