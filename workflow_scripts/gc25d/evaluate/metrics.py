"""How close a generated clip comes to the recorded one: PSNR and SSIM, frame by frame.

Both come from scikit-image on the uint8 frames themselves, never from a compressed video.
Frame 0 is given to the model: its PSNR tells how well it came through, and is part of no mean.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from gc25d.errors import UserError
from gc25d.shapes import RgbFrames

PSNR_CAP = 100.0
"""dB. The PSNR of equal frames is infinite, which JSON cannot hold: no PSNR is above this."""

SSIM_WINDOW = 7
"""Side in pixels of SSIM's uniform window (scikit-image's default)."""

DATA_RANGE = 255
"""Largest possible difference of two uint8 values."""


@dataclass(frozen=True)
class Means:
    """Mean PSNR (dB) and mean SSIM (−1..1)."""

    psnr: float
    ssim: float


@dataclass(frozen=True)
class ClipScores:
    """The scores of the frames 1, 2, … of a clip, and apart from them that of frame 0."""

    clip_id: str
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    frame_0_psnr: float | None = None
    """Of the given frame; None where only generated frames were scored."""

    @property
    def means(self) -> Means:
        """The means over the frames."""
        return Means(psnr=_mean(self.psnr), ssim=_mean(self.ssim))


def score_clip(
    frames: RgbFrames, truth: RgbFrames, clip_id: str, *, threads: int = 1
) -> ClipScores:
    """Score `frames` against `truth`, both uint8 [T, H, W, 3], frame 0 apart from the others.

    Frames are scored by `threads` threads at once; the scores do not depend on their number.

    Raises:
        UserError: another type or shape, fewer than two frames, frames smaller than SSIM's
            window, or a score that is not finite; names the clip.
    """
    _check(frames, truth, clip_id)
    with ThreadPoolExecutor(threads) as pool:
        psnr = tuple(pool.map(frame_psnr, frames[1:], truth[1:]))
        ssim = tuple(pool.map(frame_ssim, frames[1:], truth[1:]))
    for frame, scored in enumerate(zip(psnr, ssim, strict=True), start=1):
        if not all(map(math.isfinite, scored)):
            raise UserError(
                f"clip {clip_id}, frame {frame}: PSNR {scored[0]} dB and SSIM {scored[1]} are no "
                "scores: look at the recorded frames"
            )
    return ClipScores(clip_id, psnr, ssim, frame_psnr(frames[0], truth[0]))


def frame_psnr(frame: np.ndarray, truth: np.ndarray) -> float:
    """PSNR of two uint8 frames in dB, 20·log10(255) − 10·log10(MSE), at most `PSNR_CAP`."""
    if np.array_equal(frame, truth):
        return PSNR_CAP
    value = peak_signal_noise_ratio(truth, frame, data_range=DATA_RANGE)
    return min(float(value), PSNR_CAP)


def frame_ssim(frame: np.ndarray, truth: np.ndarray) -> float:
    """Mean SSIM of two uint8 frames [H, W, 3] over pixels and channels (7 × 7 uniform window)."""
    value = structural_similarity(
        truth, frame, win_size=SSIM_WINDOW, data_range=DATA_RANGE, channel_axis=-1
    )
    return float(value)


def mean_scores(scores: Sequence[ClipScores]) -> Means:
    """The mean over clips of their means over frames.

    Raises:
        ValueError: there are no clips.
    """
    if not scores:
        raise ValueError("no clips to average")
    means = [clip.means for clip in scores]
    return Means(psnr=_mean([m.psnr for m in means]), ssim=_mean([m.ssim for m in means]))


def _check(frames: np.ndarray, truth: np.ndarray, clip_id: str) -> None:
    for name, array in (("generated", frames), ("recorded", truth)):
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3:
            raise UserError(
                f"clip {clip_id}: {name} frames are {array.dtype} {list(array.shape)}, "
                "expected uint8 [frames, height, width, 3]"
            )
    if frames.shape != truth.shape:
        raise UserError(
            f"clip {clip_id}: generated frames are {list(frames.shape)}, the recorded ones "
            f"{list(truth.shape)}: evaluate with the geometry that the data set was built with"
        )
    count, height, width, _ = frames.shape
    if count < 2:
        raise UserError(f"clip {clip_id}: {count} frames, expected at least 2 (frame 0 is given)")
    if min(height, width) < SSIM_WINDOW:
        raise UserError(
            f"clip {clip_id}: frames are {height} x {width} pixels, SSIM needs at least "
            f"{SSIM_WINDOW} x {SSIM_WINDOW}: use larger frames"
        )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values, dtype=np.float64))
