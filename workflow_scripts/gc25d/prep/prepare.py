"""One raw run → its prepared clips: latents, packed ids, cameras and index rows.

A clip that cannot be read becomes a dropped row with the reason, and the others are built. A run
that cannot be read becomes one row without clips. Nothing here depends on where the run lies or on
how many processes read it.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gc25d.errors import UserError
from gc25d.finite import check_finite
from gc25d.prep.encoders.dct import Codec
from gc25d.prep.reading.read import RawRun, ReadClip, reason_of
from gc25d.prep.reading.readers import Reading, readings
from gc25d.prep.rows import RunRow
from gc25d.prep.store import digest_tensor

logger = logging.getLogger(__name__)


@dataclass
class PreparedRun:
    """What a run's two tensor files and its rows will hold (see `gc25d.prep.store`)."""

    latents: dict[str, Tensor] = field(default_factory=dict)
    ids: dict[str, Tensor] = field(default_factory=dict)
    rows: list[RunRow] = field(default_factory=list)


def prepare_run(
    run_dir: Path,
    run_id: str,
    frames: int,
    height: int,
    width: int,
    load_codec: Callable[[], Codec],
    workers: int = 0,
) -> PreparedRun:
    """Prepare every clip of a raw run; `workers` processes read ahead of the encoder.

    Finished clips stay in memory (3 MB each at 81×480×832); frames only from reading to encoding.
    The codec is loaded while the first clips are read, unless the run cannot be read at all.

    Raises:
        UserError: the codec cannot be loaded, or makes latents that are not finite.
    """
    prepared = PreparedRun()
    try:
        run = RawRun.open(run_dir, run_id, frames, height, width)
    except (UserError, OSError) as error:
        reason = reason_of(error, run_dir, run_id)
        logger.warning("run %s is left out: %s", run_id, reason)
        prepared.rows.append({"run": run_id, "drop": True, "reason": reason})
        return prepared
    logger.info("run %s: pictures %s", run_id, run.crop.summary)
    if run.crop.scale > 1:
        logger.warning(
            "run %s: its pictures are stretched (%s), which adds no detail: capture larger ones, "
            "or lower geometry.height and geometry.width",
            run_id,
            run.crop.summary,
        )
    with contextlib.closing(readings(run, run.clips(), workers)) as clips:
        for clip, latents in encoded(clips, load_codec):
            _add(prepared, clip, latents)
    return prepared


def encoded(
    clips: Iterable[Reading], load_codec: Callable[[], Codec]
) -> Iterator[tuple[ReadClip, Tensor | None]]:
    """Clips with their latents, bf16 [48, F, h, w], in order; None for a clip that was dropped.

    The encoder runs in a thread and always has one more clip queued, so that clips are read and
    finished ones are stored while it encodes. The thread loads the codec first.
    """
    thread = ThreadPoolExecutor(1)
    codec = thread.submit(load_codec)

    def encode(reading: Reading) -> Tensor | None:
        try:
            if reading.clip.row["drop"]:
                return None
            return codec.result().encode(reading.frames).to(torch.bfloat16).contiguous()
        finally:
            reading.release()

    with thread:
        before: tuple[ReadClip, Future[Tensor | None]] | None = None
        for reading in clips:
            now = reading.clip, thread.submit(encode, reading)
            if before:
                yield before[0], before[1].result()
            before = now
        if before:
            yield before[0], before[1].result()
        codec.result()  # without any clip, too, a codec that cannot be loaded is an error


def _add(prepared: PreparedRun, clip: ReadClip, latents: Tensor | None) -> None:
    """Put a clip into the run, or its row alone when it cannot be used.

    Raises:
        UserError: its latents are not finite, which is no fault of the capture.
    """
    row = clip.row
    if latents is not None:
        check_finite(latents, f"clip {row['clip_id']}: latents", "check the codec's weights")
    if row["drop"]:
        logger.warning("clip %s is dropped: %s", row["clip_id"], row["reason"])
    elif latents is not None and clip.packed_ids is not None:
        name = row["clip_id"]
        prepared.latents[name] = latents
        prepared.ids[f"{name}.ids"] = torch.from_numpy(clip.packed_ids)
        prepared.ids[f"{name}.world_to_clip"] = torch.from_numpy(clip.world_to_clip)
        row = row | {"digests": {"latents": digest_tensor(latents), **row["digests"]}}
    prepared.rows.append(row)
