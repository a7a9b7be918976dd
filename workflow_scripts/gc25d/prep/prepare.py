"""One raw run → its prepared clips: latents, packed ids, cameras and index rows.

A clip that cannot be read becomes a dropped row with the reason, and the others are built. A run
that cannot be read becomes one row without clips. Nothing here depends on where the run lies.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gc25d.capture.format import (
    ClipTable,
    RawClip,
    RunMeta,
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
from gc25d.prep.codec import Codec
from gc25d.prep.parts import LAST_STATIC, part_ids
from gc25d.prep.store import digest_tensor, pack_ids
from gc25d.prep.text import NULL_PROMPT
from gc25d.shapes import RgbFrames, SemIds, WorldToClip

log = logging.getLogger(__name__)

Row = dict[str, Any]


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
            UserError: a file that all clips need is missing or damaged.
        """
        meta = read_meta(run_dir)
        pictures, stencil = index_frames(run_dir), index_stencil(run_dir)
        if pictures.first_number != stencil.first_number:
            raise UserError(
                f"{run_dir}: frames start at number {pictures.first_number}, the stencil at "
                f"{stencil.first_number}: renumber one of them"
            )
        view = fit_view((meta.height, meta.width), (height, width))
        table = read_clips(run_dir, frames)
        return cls(run_dir, run_id, meta, table, pictures, stencil, view)

    def clip_id(self, clip: RawClip) -> str:
        """`<scene>__<run>__<start>`, the start in six digits."""
        return f"{self.run_id}__{clip.start:06d}"

    def prompt(self, key: str) -> str:
        """The prompt of a text key; NULL_PROMPT is the empty one unless the run says otherwise."""
        known = key in self.table.prompts or key != NULL_PROMPT
        return self.table.prompt(key) if known else ""

    def clips(self) -> Iterator[RawClip]:
        """The clips in the order of their starts; one listed twice is taken once."""
        by_start = {clip.start: clip for clip in reversed(self.table.clips)}
        if len(by_start) < len(self.table.clips):
            log.warning("%s: clips with equal starts: the first of each is taken", self.run_id)
        for start in sorted(by_start):
            yield by_start[start]


@dataclass
class PreparedRun:
    """What a run's two tensor files and its rows will hold (see `gc25d.prep.store`)."""

    latents: dict[str, Tensor] = field(default_factory=dict)
    ids: dict[str, Tensor] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


def prepare_run(
    run_dir: Path, run_id: str, frames: int, height: int, width: int, codec: Codec
) -> PreparedRun:
    """Prepare every clip of a raw run."""
    prepared = PreparedRun()
    try:
        run = RawRun.open(run_dir, run_id, frames, height, width)
    except (UserError, OSError) as error:
        reason = _reason(error, run_dir, run_id)
        log.warning("run %s is left out: %s", run_id, reason)
        prepared.rows.append({"run": run_id, "drop": True, "reason": reason})
        return prepared
    for clip in run.clips():
        try:
            _add(prepared, run, clip, codec)
        except (UserError, OSError, np.linalg.LinAlgError) as error:
            reason = _reason(error, run_dir, run_id)
            log.warning("clip %s is dropped: %s", run.clip_id(clip), reason)
            prepared.rows.append(_row(run, clip) | {"drop": True, "reason": reason})
    return prepared


def _add(prepared: PreparedRun, run: RawRun, clip: RawClip, codec: Codec) -> None:
    """Prepare one clip; `prepared` is changed only when all of it succeeded."""
    frames, sem_ids, cameras = read_clip(run, clip)
    clip_id = run.clip_id(clip)
    latents = codec.encode(frames).to(torch.bfloat16).contiguous()
    if not latents.isfinite().all():
        raise UserError(
            f"{run.run_dir}: latents hold NaN or an infinity: check the codec's weights"
        )
    packed, world_to_clip = pack_ids(sem_ids), torch.from_numpy(cameras)
    prepared.latents[clip_id] = latents
    prepared.ids[f"{clip_id}.ids"] = packed
    prepared.ids[f"{clip_id}.world_to_clip"] = world_to_clip
    prepared.rows.append(
        _row(run, clip)
        | {
            "prompts": {key: run.prompt(key) for key in sorted(set(clip.text_keys))},
            "static_share": round(float((sem_ids <= LAST_STATIC).mean()), 6),
            "character_share": round(float((sem_ids > LAST_STATIC).mean()), 6),
            "digests": {
                "latents": digest_tensor(latents),
                "ids": digest_tensor(packed),
                "world_to_clip": digest_tensor(world_to_clip),
            },
        }
    )


def read_clip(run: RawRun, clip: RawClip) -> tuple[RgbFrames, SemIds, WorldToClip]:
    """A clip at its final size: RGB, semantic ids, cameras.

    Raises:
        UserError: a frame, stencil, camera or skeleton of the clip is missing or damaged.
    """
    run_dir, start, count = run.run_dir, clip.start, run.table.frames
    stencil = resample_stencil(read_stencil(run_dir, start, count, index=run.stencil), run.view)
    frames = resample_frames(read_frames(run_dir, start, count, index=run.frames), run.view)
    cameras = resample_cameras(read_cameras(run_dir, start, count), run.view)
    skeletons = read_skeletons(run_dir, start, count)
    sem_ids = part_ids(stencil, cameras, skeletons.capsules, skeletons.part)
    return frames, sem_ids, np.ascontiguousarray(cameras)


def _row(run: RawRun, clip: RawClip) -> Row:
    """What is known of a clip before its pictures are read."""
    return {
        "clip_id": run.clip_id(clip),
        "run": run.run_id,
        "start": clip.start,
        "shape": [run.table.frames, *run.view.target_hw],
        "drop": False,
        "reason": "",
        "flags": list(clip.flags),
        "text_keys": list(clip.text_keys),
        "prompts": {},
        "ground_z": ground_plane(run.meta.ground_z),
        "digests": {},
    }


def _reason(error: Exception, run_dir: Path, run_id: str) -> str:
    """The message without the run's folder, so that equal data give equal rows anywhere."""
    return str(error).replace(str(run_dir), run_id)
