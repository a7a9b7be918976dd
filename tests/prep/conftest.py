"""A raw run written by hand: a few frames, an analytic camera, one character."""

import math
from pathlib import Path

import numpy as np
import pytest

from gc25d.capture.format import ClipTable, RawClip, RunMeta, Skeletons, write_run
from gc25d.geometry.camera import look, perspective, rotator_axes

WIDTH, HEIGHT, FRAMES = 80, 48, 12


def picture(number: int, seed: int) -> np.ndarray:
    """Smooth colours that move with the frame and differ by seed."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin((x + 3 * number + 17 * seed) / (9 + c)) + np.cos(y / (7 + c)) for c in range(3)]
    return (np.stack(waves, -1) * 55 + 128).astype(np.uint8)


def stencil() -> np.ndarray:
    """Sky above, ground below, the player in the middle."""
    classes = np.ones((HEIGHT, WIDTH), np.uint8)
    classes[:20] = 0
    classes[24:36, 36:44] = 7
    return classes


def write_raw(run_dir: Path, seed: int = 0, prompts: dict[str, str] | None = None) -> Path:
    """Two clips of 5 frames, at 0 and 5, of `FRAMES` frames."""
    camera = look(np.array([0, 0, 150.0]), rotator_axes(-10, 0, 0))
    cameras = np.stack([camera @ perspective(90, WIDTH / HEIGHT, 5.0)] * FRAMES)
    capsule = np.array([300, 0, 0, 300, 0, 180, 30], np.float32)
    meta = RunMeta(
        fps=17.5, width=WIDTH, height=HEIGHT, ground_z=(math.nan, 4.0, 8.0), units="cm",
        projection="perspective", source="test", engine="by hand",
    )  # fmt: skip
    clips = tuple(RawClip(start, ("go", "stop")) for start in (0, 5))
    table = ClipTable(5, prompts or {"go": "walk on", "stop": "stand still"}, clips)
    write_run(
        run_dir,
        frames=[picture(number, seed) for number in range(FRAMES)],
        stencil=[stencil()] * FRAMES,
        cameras=cameras,
        skeletons=Skeletons(np.tile(capsule, (FRAMES, 1, 1)), np.array([11], np.uint8)),
        meta=meta,
        tables=[table],
    )
    return run_dir


@pytest.fixture
def raw_run():
    """Writes a raw run into a folder: `raw_run(folder, seed, prompts)`."""
    return write_raw
