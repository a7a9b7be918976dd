"""From a captured picture to the model's: one centre crop and scale for frame, stencil, camera."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from gc25d.errors import UserError


@dataclass(frozen=True)
class View:
    """A box of the source picture (continuous pixel coordinates) scaled to the target's size."""

    source_hw: tuple[int, int]
    target_hw: tuple[int, int]
    left: float
    top: float
    width: float
    height: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom in source pixels."""
        return self.left, self.top, self.left + self.width, self.top + self.height

    @property
    def identity(self) -> bool:
        """Whether nothing changes."""
        return self.source_hw == self.target_hw


def fit_view(source_hw: tuple[int, int], target_hw: tuple[int, int]) -> View:
    """The largest centred box of the target's aspect; its sides may fall inside a pixel."""
    source_h, source_w = source_hw
    target_h, target_w = target_hw
    scale = min(source_h / target_h, source_w / target_w)
    width, height = target_w * scale, target_h * scale
    return View(
        source_hw, target_hw, (source_w - width) / 2, (source_h - height) / 2, width, height
    )


def resample_frames(
    frames: UInt8[np.ndarray, "T H W 3"], view: View
) -> UInt8[np.ndarray, "T h w 3"]:
    """Crop and scale with Pillow's bicubic filter, whose support grows with the shrink factor."""
    _check(frames.shape[1:3], view)
    if view.identity:
        return frames
    height, width = view.target_hw
    scaled = [
        np.asarray(
            Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC, box=view.box)
        )
        for frame in frames
    ]
    return np.stack(scaled) if scaled else np.empty((0, height, width, 3), np.uint8)


def resample_stencil(stencil: UInt8[np.ndarray, "T H W"], view: View) -> UInt8[np.ndarray, "T h w"]:
    """Crop and scale by the nearest source pixel: the one under the target pixel's centre."""
    _check(stencil.shape[1:3], view)
    rows = _nearest(view.top, view.height, view.target_hw[0], view.source_hw[0])
    columns = _nearest(view.left, view.width, view.target_hw[1], view.source_hw[1])
    return np.asarray(stencil[:, rows[:, None], columns[None, :]])


def _nearest(start: float, extent: float, target: int, source: int) -> np.ndarray:
    centres = start + (np.arange(target) + 0.5) * (extent / target)
    return np.asarray(np.minimum(np.floor(centres).astype(np.intp), source - 1))


def resample_cameras(
    world_to_clip: Float64[np.ndarray, "*batch 4 4"], view: View
) -> Float64[np.ndarray, "*batch 4 4"]:
    """The cameras of the cropped and scaled picture: an affine map of clip x and y.

    With ndc = 2u/W − 1 and the crop's u' = (u − left)·W'/width:
    ndc_x' = ndc_x·W/width + (W − 2·left)/width − 1, and likewise for y, which points up.
    """
    source_h, source_w = view.source_hw
    crop = np.eye(4)
    crop[0, 0] = source_w / view.width
    crop[3, 0] = (source_w - 2 * view.left) / view.width - 1
    crop[1, 1] = source_h / view.height
    crop[3, 1] = 1 - (source_h - 2 * view.top) / view.height
    return np.asarray(world_to_clip @ crop)


def _check(found_hw: tuple[int, ...], view: View) -> None:
    if tuple(found_hw) != view.source_hw:
        raise UserError(
            f"picture of {found_hw[0]} by {found_hw[1]} (height by width), expected "
            f"{view.source_hw[0]} by {view.source_hw[1]}: meta.json and the pictures disagree"
        )
