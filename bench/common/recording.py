"""A raw run made on the fly for the benchmarks of prep: smooth pictures, four characters."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, Skeletons, latent_cells
from gc25d.capture.raw.write import write_run
from gc25d.geometry.camera import look, perspective, project, rotator_axes

# (forward, right, up) of both ends and the radius, cm; part
LIMBS = (
    ((0, 0, 165), (0, 0, 168), 14, 0),
    ((0, 0, 90), (0, 0, 145), 22, 1),
    ((0, -30, 90), (0, -35, 140), 9, 2),
    ((0, 30, 90), (0, 35, 140), 9, 2),
    ((0, -12, 10), (0, -12, 80), 11, 3),
    ((0, 12, 10), (0, 12, 80), 11, 3),
    ((0, -35, 80), (0, -35, 85), 8, 4),
    ((0, 35, 80), (40, 35, 85), 5, 5),
)
PLAYER, BOSSES = (350.0, 0.0), ((600.0, -300.0), (700.0, 250.0), (900.0, 60.0))


@dataclass(frozen=True)
class Size:
    """What is encoded, and how often each time is taken."""

    frames: int
    height: int
    width: int
    source_hw: tuple[int, int]
    clips: int
    """Clips' worth of frames that are written."""
    listed: int
    """Clips cut from them, overlapping, so that a run is as long as a real one."""
    checked: int
    """Frames of the check against fp32."""
    repeats: int

    @property
    def clip_shape(self) -> tuple[int, int, int]:
        """Frames, height, width."""
        return self.frames, self.height, self.width


def picture(number: int, height: int, width: int) -> np.ndarray:
    """Smooth colours that move."""
    y, x = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin((x + 5 * number) / np.array([37, 53, 91])) + np.cos(y / np.array([29, 71, 43]))
    return np.asarray((waves * 55 + 128).astype(np.uint8))


def bodies() -> tuple[np.ndarray, np.ndarray]:
    """Capsules [N, 7] and parts [N] of the player and three bosses."""
    capsules, parts = [], []
    for first, places in ((10, (PLAYER,)), (16, BOSSES)):
        for x, y in places:
            for start, end, radius, part in LIMBS:
                ends = [
                    a + b for point in (start, end) for a, b in zip(point, (x, y, 0), strict=True)
                ]
                capsules.append([*ends, radius])
                parts.append(first + part)
    return np.array(capsules, np.float32), np.array(parts, np.uint8)


def stencil_picture(camera: np.ndarray, height: int, width: int) -> np.ndarray:
    """Sky, ground, and an ellipse with a ragged edge for each character."""
    rows, columns = np.mgrid[:height, :width]
    stencil = np.where(rows < height * 0.4, 0, 1).astype(np.uint8)
    for place in (*BOSSES, PLAYER):
        (centre, head), _ = project(
            np.array([[*place, 90.0], [*place, 185.0]]), camera, width, height
        )
        tall = centre[1] - head[1]
        reach = ((columns - centre[0]) / (0.5 * tall)) ** 2 + ((rows - centre[1]) / tall) ** 2
        stencil[reach < 1 + 0.2 * np.sin(columns / 3)] = 7 if place == PLAYER else 8
    return stencil


def write_raw(folder: Path, size: Size, first: int = 0) -> None:
    """A run whose clips overlap, and whose pictures start with number `first`."""
    height, width = size.source_hw
    count = size.frames * size.clips
    lens = perspective(90, width / height, 5.0)
    camera = look(np.array([0, 0, 150.0]), rotator_axes(-5, 0, 0)) @ lens
    capsules, parts = bodies()
    stencil = stencil_picture(camera, height, width)
    keys = ("go",) * latent_cells(size.frames)
    stride = (count - size.frames) // (size.listed - 1)
    clips = tuple(RawClip(stride * number, keys) for number in range(size.listed))
    write_run(
        folder,
        frames=(picture(first + number, height, width) for number in range(count)),
        stencil=(stencil for _ in range(count)),
        cameras=np.tile(camera, (count, 1, 1)),
        skeletons=Skeletons(np.tile(capsules, (count, 1, 1)), parts),
        meta=RunMeta(16.0, width, height, (0.0,), "cm", "perspective", "bench", "none"),
        tables=[ClipTable(size.frames, {"go": "walk on"}, clips)],
    )


def clip_of(size: Size, frames: int) -> np.ndarray:
    return np.stack([picture(number, size.height, size.width) for number in range(frames)])
