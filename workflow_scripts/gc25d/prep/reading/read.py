"""A raw run's clips at their final size: frames, and beside them packed ids, cameras and a row."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from jaxtyping import UInt8

from gc25d.capture.raw.format import (
    CameraFile,
    ClipTable,
    RawClip,
    RunMeta,
    SkeletonFile,
    check_counts,
    frame_pictures,
    index_frames,
    index_stencil,
    read_clips,
    read_meta,
    stencil_pictures,
)
from gc25d.capture.raw.tars import Series
from gc25d.errors import UserError
from gc25d.geometry.ground import ground_plane
from gc25d.geometry.resample import (
    ResizedCrop,
    fit_crop,
    resample_cameras,
    resample_picture,
    resample_stencil,
)
from gc25d.prep.faults import check_listing, listing_faults
from gc25d.prep.parts import LAST_STATIC, part_ids
from gc25d.prep.rows import PreparedClip
from gc25d.prep.store import digest_tensor, pack_ids
from gc25d.prep.text import NULL_PROMPT
from gc25d.shapes import RgbFrames, SemIds, WorldToClip


@dataclass(frozen=True)
class RawRun:
    """A raw run, opened: everything but its pictures."""

    run_dir: Path
    run_id: str
    meta: RunMeta
    table: ClipTable
    frames: Series
    stencil: Series
    cameras: CameraFile
    skeletons: SkeletonFile
    crop: ResizedCrop
    """From a captured picture to the clip's size."""
    block: int = 9
    """Frames that one process reads at once."""

    @classmethod
    def open(cls, run_dir: Path, run_id: str, frames: int, height: int, width: int) -> Self:
        """Open a run for clips of `frames` × `height` × `width`.

        Raises:
            UserError: a file that all clips need is missing or damaged, or frames, stencil, cameras
                and skeletons differ in number.
        """
        meta = read_meta(run_dir)
        pictures, stencil = index_frames(run_dir), index_stencil(run_dir)
        cameras, skeletons = CameraFile.open(run_dir), SkeletonFile.open(run_dir)
        check_counts(pictures, stencil, cameras, skeletons)
        crop = fit_crop((meta.height, meta.width), (height, width))
        table = read_clips(run_dir, frames)
        if not table.clips:
            raise UserError(
                f"{run_dir}: clips_{frames}.json lists no clip: list some, or remove the run"
            )
        return cls(run_dir, run_id, meta, table, pictures, stencil, cameras, skeletons, crop)

    @property
    def frames_shape(self) -> tuple[int, int, int, int]:
        """Shape [T, H, W, 3] of a clip's frames."""
        return (self.table.frames, *self.crop.target_hw, 3)

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of frames of a clip, each the work of one process."""
        count = self.table.frames
        return [(begin, min(begin + self.block, count)) for begin in range(0, count, self.block)]

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
class Pictures:
    """Where a clip is read into."""

    frames: RgbFrames
    sem_ids: SemIds

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int]) -> Self:
        """Memory of its own, for frames of `shape` [T, H, W, 3]."""
        return cls.of(np.empty(cls.size(shape), np.uint8), shape)

    @classmethod
    def of(cls, memory: UInt8[np.ndarray, " size"], shape: tuple[int, int, int, int]) -> Self:
        """The memory given, `size(shape)` bytes."""
        frames, sem_ids = np.split(memory, [math.prod(shape)])
        return cls(frames.reshape(shape), sem_ids.reshape(shape[:3]))

    @staticmethod
    def size(shape: tuple[int, int, int, int]) -> int:
        """Bytes of both."""
        return math.prod(shape) + math.prod(shape[:3])


@dataclass(frozen=True)
class ReadClip:
    """What was read of a clip beside its pictures; of a dropped clip only the row."""

    row: PreparedClip
    packed_ids: np.ndarray | None = None
    """uint8 [bytes], see `gc25d.prep.store.pack_ids`."""
    world_to_clip: WorldToClip | None = None


def read_clip(run: RawRun, clip: RawClip, pictures: Pictures) -> ReadClip:
    """Read a clip, block after block; one that cannot be read is dropped."""
    faults = (read_block(run, clip, block, pictures) for block in range(len(run.blocks)))
    return finish_clip(run, clip, pictures.sem_ids, next(filter(None, faults), ""))


def read_block(run: RawRun, clip: RawClip, block: int, pictures: Pictures) -> str:
    """Read one of `run.blocks` into its place in `pictures`; returns what is wrong, or ""."""
    begin, end = run.blocks[block]
    start, frames = clip.start + begin, pictures.frames[begin:end]
    size = run.meta.width, run.meta.height
    try:
        check_listing(clip, run.table.clips)
        stencil = pictures.sem_ids[begin:end]
        shown = stencil_pictures(run.stencil, size, start, end - begin)
        for into, classes in zip(stencil, shown, strict=True):
            into[:] = resample_stencil(classes, run.crop)
        pictures_shown = frame_pictures(run.frames, size, start, end - begin)
        for into, picture in zip(frames, pictures_shown, strict=True):
            into[:] = resample_picture(picture, run.crop)
        cameras = resample_cameras(run.cameras.of(start, end - begin), run.crop)
        skeletons = run.skeletons.of(start, end - begin)
        stencil[:] = part_ids(stencil, cameras, skeletons.capsules, skeletons.part)
    except (UserError, OSError, np.linalg.LinAlgError) as error:
        return reason_of(error, run.run_dir, run.run_id)
    return ""


def finish_clip(run: RawRun, clip: RawClip, sem_ids: SemIds, fault: str) -> ReadClip:
    """Pack the ids of a clip whose blocks were all read, or drop it for its first fault."""
    row = _row(run, clip)
    if fault:
        return ReadClip(row | {"drop": True, "reason": fault})
    packed = pack_ids(sem_ids)
    cameras = run.cameras.of(clip.start, run.table.frames)
    world_to_clip = np.ascontiguousarray(resample_cameras(cameras, run.crop))
    static = int(np.count_nonzero(sem_ids <= LAST_STATIC))
    row |= {
        "prompts": {key: run.prompt(key) for key in sorted(set(clip.text_keys))},
        "static_share": round(static / sem_ids.size, 6),
        "character_share": round((sem_ids.size - static) / sem_ids.size, 6),
        "digests": {
            "ids": digest_tensor(packed),
            "world_to_clip": digest_tensor(torch.from_numpy(world_to_clip)),
        },
    }
    return ReadClip(row, packed.numpy(), world_to_clip)


def _row(run: RawRun, clip: RawClip) -> PreparedClip:
    """What is known of a clip before its pictures are read."""
    return {
        "clip_id": run.clip_id(clip),
        "run": run.run_id,
        "start": clip.start,
        "shape": [run.table.frames, *run.crop.target_hw],
        "pictures": run.crop.summary,
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
