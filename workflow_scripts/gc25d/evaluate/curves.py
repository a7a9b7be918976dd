"""Figures of a run: training curves, validation gaps, scores per frame. Draws, reads no files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gc25d.errors import UserError
from gc25d.evaluate.metrics import ClipScores
from gc25d.files import atomic_path

Rows = Sequence[Mapping[str, str]]
"""Rows of a CSV as `records.read_csv` gives them."""

SMOOTHING_SHARE = 0.05
"""The smoothed loss is a running mean over this share of the steps, at least 5 of them."""
DPI = 120


def column(rows: Rows, name: str) -> np.ndarray:
    """A column as float64; an empty cell is NaN.

    Raises:
        UserError: the column is missing or holds no number; names column and row.
    """
    values = []
    for number, row in enumerate(rows, start=1):
        if row.get(name) is None:
            raise UserError(f"row {number} has no column {name}; columns are {', '.join(row)}")
        try:
            values.append(float(row[name]) if row[name] != "" else math.nan)
        except ValueError:
            raise UserError(f"row {number}, column {name}: {row[name]!r} is no number") from None
    return np.array(values, dtype=np.float64)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at each point (fewer at the start); NaN are left out."""
    known = np.isfinite(values)
    total = np.cumsum(np.where(known, values, 0.0))
    count = np.cumsum(known).astype(np.float64)
    total[window:] = total[window:] - total[:-window]
    count[window:] = count[window:] - count[:-window]
    mean = np.full(len(values), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def training_figure(train: Rows, validation: Rows) -> Figure:
    """Loss, gradient norm and rates over steps; validation losses and gaps by timestep."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    axes = figure.subplots(2, 3)
    _loss(axes[0, 0], train)
    _lines(axes[0, 1], train, ["grad_norm"], "gradient norm, before clipping")
    _lines(axes[0, 2], train, ["lr", "cond_lr"], "learning rate")
    by_timestep = _by_timestep(validation)
    _per_timestep(axes[1, 0], by_timestep, "mse", "validation loss (mse)")
    _per_timestep(axes[1, 1], by_timestep, "gap_uncond", "gap without condition", zero=True)
    _per_timestep(axes[1, 2], by_timestep, "gap_nulltext", "gap without text", zero=True)
    for axis in axes.flat:
        axis.set_xlabel("optimizer step")
        axis.grid(alpha=0.25)
    return figure


def scores_figure(clips: Sequence[ClipScores], ceilings: Sequence[ClipScores]) -> Figure:
    """PSNR and SSIM of each clip over its frames, the codec's own dashed in the same colour."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("psnr", "ssim"), strict=True):
        for number, (clip, ceiling) in enumerate(zip(clips, ceilings, strict=True)):
            colour = f"C{number % 10}"
            frames = np.arange(1, len(clip.psnr) + 1)
            axis.plot(frames, getattr(clip, name), color=colour, label=clip.clip_id)
            axis.plot(frames, getattr(ceiling, name), color=colour, ls="--", lw=0.8, alpha=0.7)
        axis.set_title("PSNR, dB" if name == "psnr" else "SSIM", fontsize=10)
        axis.set_xlabel("frame (dashed: the codec alone)")
        axis.grid(alpha=0.25)
        if name == "psnr" and len(clips) <= 10:
            axis.legend(fontsize=7)
    return figure


def save_png(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically; equal figures give equal bytes."""
    figure.set_dpi(DPI)
    with atomic_path(path) as temporary:
        FigureCanvasAgg(figure).print_png(temporary, metadata={"Software": None})


def _loss(axis: Axes, train: Rows) -> None:
    steps, loss = column(train, "step"), column(train, "loss")
    window = max(5, round(SMOOTHING_SHARE * len(steps)))
    axis.plot(steps, loss, color="C0", alpha=0.3, lw=0.8, label="each step")
    axis.plot(steps, running_mean(loss, window), color="C0", label=f"mean of {window} steps")
    axis.set_title("training loss", fontsize=10)
    axis.legend(fontsize=8)


def _lines(axis: Axes, train: Rows, names: Sequence[str], title: str) -> None:
    steps = column(train, "step")
    for name, style in zip(names, ("-", "--"), strict=False):
        axis.plot(steps, column(train, name), ls=style, lw=1.2, label=name)
    axis.set_title(title, fontsize=10)
    if len(names) > 1:
        axis.legend(fontsize=8)


def _by_timestep(validation: Rows) -> dict[float, Rows]:
    groups: dict[float, list[Mapping[str, str]]] = {}
    for row, timestep in zip(validation, column(validation, "timestep"), strict=True):
        groups.setdefault(float(timestep), []).append(row)
    return {timestep: groups[timestep] for timestep in sorted(groups)}


def _per_timestep(
    axis: Axes, groups: Mapping[float, Rows], name: str, title: str, *, zero: bool = False
) -> None:
    if zero:
        axis.axhline(0, color="black", lw=0.8)
    for timestep, rows in groups.items():
        axis.plot(column(rows, "step"), column(rows, name), marker=".", label=f"t = {timestep:.0f}")
    axis.set_title(title, fontsize=10)
    if groups:
        axis.legend(fontsize=8)
