"""A picture to judge prepared data by: recorded frames, and the same under their semantic ids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gc25d.evaluate.panels import (
    BACKGROUND,
    GAP,
    LABEL_HEIGHT,
    SHEET_WIDTH,
    beside,
    enlarge,
    header_strip,
    shown_frames,
    stack_sheets,
    text_strip,
)
from gc25d.prep.overlay import colourise, legend, overlay
from gc25d.shapes import RgbFrames, SemIds

ALPHA = 0.55
SWATCH = 16
ENTRY_WIDTH = 200
"""Pixels of one entry of the legend."""


@dataclass(frozen=True)
class LabelledClip:
    """Recorded frames uint8 [T, H, W, 3] and their semantic ids [T, H, W]."""

    clip_id: str
    frames: RgbFrames
    sem_ids: SemIds


def overlay_figure(clips: Sequence[LabelledClip]) -> np.ndarray:
    """Two rows a clip (frames, overlay) and a legend below, uint8 [H', W', 3]."""
    rows = [_clip_rows(clip) for clip in clips]
    return stack_sheets([*rows, legend_strip(max(row.shape[1] for row in rows))])


def legend_strip(width: int) -> np.ndarray:
    """Colour, id and name of every class, wrapped to `width` pixels (at least one a line)."""
    entries = [_entry(name, number) for name, number, _ in legend()]
    per_line = max(1, width // ENTRY_WIDTH)
    lines = [
        np.concatenate(entries[i : i + per_line], axis=1) for i in range(0, len(entries), per_line)
    ]
    return stack_sheets(lines)


def _entry(name: str, number: int) -> np.ndarray:
    entry = np.full((LABEL_HEIGHT + GAP, ENTRY_WIDTH, 3), BACKGROUND, np.uint8)
    top = (len(entry) - SWATCH) // 2
    swatch = colourise(np.full((SWATCH, SWATCH), number, np.uint8))
    entry[top : top + SWATCH, GAP : GAP + SWATCH] = swatch
    left = 2 * GAP + SWATCH
    text = text_strip(f"{number} {name.replace('_', ' ')}", ENTRY_WIDTH - left, len(entry))
    entry[:, left:] = text
    return entry


def _clip_rows(clip: LabelledClip) -> np.ndarray:
    shown = shown_frames(len(clip.frames))
    factor = max(1, SHEET_WIDTH // clip.frames.shape[2])
    frames = enlarge(clip.frames[shown], factor)
    ids = clip.sem_ids[shown].repeat(factor, axis=1).repeat(factor, axis=2)
    labels = header_strip([f"frame {t}" for t in shown], frames.shape[2])
    title = text_strip(clip.clip_id, labels.shape[1])
    rows = [title, labels, beside(list(frames)), beside(list(overlay(frames, ids, ALPHA)))]
    return np.concatenate(rows, axis=0)
