"""The scores as JSON: one file a clip with every frame, one for the whole evaluation."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gc25d.evaluate.metrics import PSNR_CAP, ClipScores, Means

DECIMALS = 6
FRAME_0_NOTE = "given to the model, part of no mean"


def frame_results(scores: ClipScores, ceiling: ClipScores) -> dict[str, Any]:
    """Scores of every frame of a clip from frame 1 on, and those of the codec alone."""
    return {
        "clip_id": scores.clip_id,
        "frame": list(range(1, len(scores.psnr) + 1)),
        "psnr": _rounded(scores.psnr),
        "ssim": _rounded(scores.ssim),
        "ceiling_psnr": _rounded(ceiling.psnr),
        "ceiling_ssim": _rounded(ceiling.ssim),
        "frame_0": {
            "psnr": _maybe(scores.frame_0_psnr),
            "ceiling_psnr": _maybe(ceiling.frame_0_psnr),
            "note": FRAME_0_NOTE,
        },
    }


def clip_result(scores: ClipScores, ceiling: ClipScores, sampling_s: float) -> dict[str, Any]:
    """Means of a clip over its frames; `sampling_s` in seconds."""
    return {
        "clip_id": scores.clip_id,
        **_means(scores.means),
        "frame_0_psnr": _maybe(scores.frame_0_psnr),
        "ceiling": _means(ceiling.means),
        "sampling_s": round(sampling_s, 3),
    }


def metrics_json(
    means: Means,
    ceiling: Means,
    clips: Sequence[Mapping[str, Any]],
    *,
    origin: Mapping[str, Any],
    settings: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """The content of metrics.json. PSNR in dB, capped; times in seconds.

    `psnr` and `ssim` are means over frames 1.. of each clip, then over clips; `frame_0` is apart.
    """
    given = [clip["frame_0_psnr"] for clip in clips if clip["frame_0_psnr"] is not None]
    return {
        **origin,
        **_means(means),
        "frame_0": {
            "psnr": _maybe(statistics.fmean(given) if given else None),
            "note": FRAME_0_NOTE,
        },
        "ceiling": _means(ceiling),
        "psnr_cap": PSNR_CAP,
        "clips": list(clips),
        "settings": settings,
        "seconds": round(seconds, 3),
    }


def _means(means: Means) -> dict[str, float]:
    return {name: round(value, DECIMALS) for name, value in dataclasses.asdict(means).items()}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, DECIMALS) for value in values]


def _maybe(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS)
