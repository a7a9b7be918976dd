import math

import numpy as np
import pytest

from gc25d.errors import UserError
from gc25d.evaluate import metrics
from gc25d.evaluate.metrics import PSNR_CAP, frame_psnr, frame_ssim, mean_scores, score_clip
from gc25d.records import to_json


def clip(value: int, frames: int = 3, side: int = 8) -> np.ndarray:
    return np.full((frames, side, side, 3), value, np.uint8)


def test_uint8_differences_do_not_wrap():
    # 100 − 116 wraps to 240 in uint8, and 16² to 0; the MSE is 256.
    scores = score_clip(clip(100), clip(116), "c")
    by_hand = 10 * math.log10(255**2 / 256)
    assert scores.psnr == pytest.approx([by_hand, by_hand], abs=1e-12)
    assert by_hand == pytest.approx(24.05, abs=0.005)


def test_psnr_is_symmetric():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 9, 11, 3), dtype=np.uint8)
    mse = np.mean((a.astype(float) - b.astype(float)) ** 2)
    assert frame_psnr(a, b) == pytest.approx(10 * np.log10(65025 / mse))
    assert frame_psnr(a, b) == frame_psnr(b, a)


def test_ssim_of_noise_and_its_inverse():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    assert frame_ssim(noise, 255 - noise) == pytest.approx(-0.973, abs=0.01)


def test_ssim_equals_the_formula_in_plain_numpy():
    rng = np.random.default_rng(2)
    a = rng.integers(0, 256, (12, 13, 3), dtype=np.uint8)
    b = np.clip(a.astype(int) + rng.integers(-40, 41, a.shape), 0, 255).astype(np.uint8)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for channel in range(3):
        for top in range(12 - 6):
            for left in range(13 - 6):
                x = a[top : top + 7, left : left + 7, channel].astype(float).ravel()
                y = b[top : top + 7, left : left + 7, channel].astype(float).ravel()
                cov = np.cov(x, y)  # unbiased, as scikit-image
                top_part = (2 * x.mean() * y.mean() + c1) * (2 * cov[0, 1] + c2)
                low_part = (x.mean() ** 2 + y.mean() ** 2 + c1) * (cov[0, 0] + cov[1, 1] + c2)
                values.append(top_part / low_part)
    assert frame_ssim(a, b) == pytest.approx(np.mean(values), abs=1e-10)


def test_equal_frames_score_the_cap_and_stay_strict_json():
    scores = score_clip(clip(7), clip(7), "c")
    assert scores.psnr == (PSNR_CAP, PSNR_CAP)
    assert scores.ssim == (1.0, 1.0)
    assert "Infinity" not in to_json(scores.psnr)


def test_nearly_equal_frames_never_score_above_equal_ones():
    frame = np.zeros((512, 512, 3), np.uint8)
    nearly = frame.copy()
    nearly[0, 0, 0] = 1  # 48.1 dB + 10·log10(786432) = 107.1 dB
    assert frame_psnr(nearly, frame) == PSNR_CAP


def test_frame_zero_is_not_scored():
    frames, truth = clip(10), clip(10)
    frames[0] = 200
    assert score_clip(frames, truth, "c").means.psnr == PSNR_CAP
    assert len(score_clip(frames, truth, "c").psnr) == 2
    # Told apart from the mean: a difference of 190 everywhere.
    assert score_clip(frames, truth, "c").frame_0_psnr == pytest.approx(20 * math.log10(255 / 190))


def test_means_are_over_frames_then_over_clips():
    truth = clip(100)
    near, far = truth.copy(), truth.copy()
    near[1:], far[1], far[2] = 101, 110, 200
    short = score_clip(near, truth, "near")
    long = score_clip(far, truth, "far")
    by_hand = [20 * math.log10(255 / d) for d in (1, 10, 100)]
    assert short.means.psnr == pytest.approx(by_hand[0])
    assert long.means.psnr == pytest.approx((by_hand[1] + by_hand[2]) / 2)
    assert mean_scores([short, long]).psnr == pytest.approx(
        (by_hand[0] + (by_hand[1] + by_hand[2]) / 2) / 2
    )
    with pytest.raises(ValueError, match="no clips"):
        mean_scores([])


@pytest.mark.parametrize(
    ("frames", "truth", "part"),
    [
        (clip(1, side=6), clip(1, side=6), "6 x 6"),
        (clip(1), clip(1, frames=4), "geometry"),
        (clip(1), clip(1, side=9), "geometry"),
        (clip(1, frames=1), clip(1, frames=1), "at least 2"),
        (clip(1).astype(np.float32), clip(1), "float32"),
        (clip(1)[..., 0], clip(1)[..., 0], "uint8 \\[3, 8, 8\\]"),
    ],
)
def test_what_cannot_be_scored_is_named(frames, truth, part):
    with pytest.raises(UserError, match=part) as caught:
        score_clip(frames, truth, "corridor__run-003__000017")
    assert "corridor__run-003__000017" in str(caught.value)


def test_threads_change_nothing():
    frames, truth = np.random.default_rng(3).integers(0, 256, (2, 9, 16, 16, 3), dtype=np.uint8)
    assert score_clip(frames, truth, "c", threads=4) == score_clip(frames, truth, "c")
    assert score_clip(frames, truth, "c").ssim[4] == frame_ssim(frames[5], truth[5])


def test_a_score_that_is_none_names_clip_and_frame(monkeypatch):
    scores = iter((0.5, math.nan))
    monkeypatch.setattr(metrics, "frame_ssim", lambda frame, truth: next(scores))
    with pytest.raises(UserError, match=r"clip c, frame 2: PSNR .* dB and SSIM nan"):
        score_clip(clip(100), clip(116), "c")
