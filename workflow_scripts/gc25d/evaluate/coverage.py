"""How much of each frame the UNKNOWN mask hides, under every coverage policy."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
from jaxtyping import Float64
from matplotlib.figure import Figure

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.masks import CAP, QUANTILES, Coverage
from gc25d.prep.parts import LAST_STATIC, UNKNOWN

Curves = dict[Coverage, Float64[np.ndarray, "N T"]]

POLICIES: tuple[Coverage, ...] = get_args(Coverage)
NEARLY_ALL = 0.9
"""A frame above this share says almost nothing of the scene."""


def measure_coverage(root: Path, seed: int, n: int) -> Curves:
    """Hidden share of each frame's static pixels in `n` masked training samples, per policy.

    All policies see the same clips and half-planes: the first epochs' draws of `seed`, with the
    mask's probability set to 1. A frame without static pixels is NaN.
    """
    plain = ClipDataset(root, "train")
    curves: Curves = {}
    for policy in POLICIES:
        masked = ClipDataset(root, "train", seed, mask_p=1.0, coverage=policy)
        rows = []
        for number in range(n):
            epoch, index = divmod(number, len(masked))
            static = (plain.sample(0, index).sem_ids <= LAST_STATIC).numpy()
            hidden = (masked.sample(epoch, index).sem_ids == UNKNOWN).numpy()
            rows.append(_shares(hidden & static, static))
        curves[policy] = np.stack(rows)
    return curves


def _shares(part: np.ndarray, whole: np.ndarray) -> Float64[np.ndarray, " T"]:
    counts = whole.sum(axis=(1, 2))
    shares = np.full(len(whole), np.nan)
    np.divide(part.sum(axis=(1, 2)), counts, out=shares, where=counts > 0)
    return shares


def coverage_summary(curves: Curves) -> dict[Coverage, dict[str, Any]]:
    """Per policy: mean and 90th percentile of each frame's coverage, share of frames over 90 %.

    A frame that is NaN in every clip (no static pixel) is null.
    """
    return {
        policy: {
            "clips": len(shares),
            "mean": [_json(np.mean(_known(column))) for column in shares.T],
            "p90": [_json(np.percentile(_known(column), 90)) for column in shares.T],
            "frames_over_90_percent": _json(np.mean(_known(shares) > NEARLY_ALL)),
        }
        for policy, shares in curves.items()
    }


def _known(shares: np.ndarray) -> np.ndarray:
    """Without the NaNs; all NaN stays one NaN."""
    known = shares[~np.isnan(shares)]
    return known if known.size else np.array([np.nan])


def _json(value: float | np.floating[Any]) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)


def coverage_figure(curves: Curves) -> Figure:
    """One panel a policy: mean and deciles of the coverage over the frames."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True)
    for axis, (policy, shares) in zip(np.atleast_1d(panels), curves.items(), strict=True):
        frames = np.arange(shares.shape[1])
        low, middle, high = np.nanpercentile(shares, [10, 50, 90], axis=0)
        axis.axhspan(QUANTILES[0], CAP, color="0.92", label="drawn quantiles")
        axis.fill_between(frames, low, high, alpha=0.25, label="10 % to 90 % of the clips")
        axis.plot(frames, middle, "--", linewidth=1, label="median")
        axis.plot(frames, np.nanmean(shares, axis=0), linewidth=2, label="mean")
        nearly = np.nanmean(shares > NEARLY_ALL)
        axis.set_title(f"{policy}: {nearly:.1%} of frames above {NEARLY_ALL:.0%}")
        axis.set_xlabel("frame")
        axis.grid(alpha=0.25)
    first = np.atleast_1d(panels)[0]
    first.set_ylim(0, 1)
    first.set_ylabel("hidden share of static pixels")
    first.legend(loc="upper left", fontsize="small")
    return figure
