"""From a captured picture to the model's: one centre crop and scale for frame, stencil, camera."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from PIL import Image
from torch.nn.functional import interpolate

from gc25d.errors import UserError

_REACH = 2  # of the bicubic filter to each side, in pixels of the coarser picture


@dataclass(frozen=True)
class ResizedCrop:
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

    @property
    def scale(self) -> float:
        """Target pixels of a source pixel's side; above 1 pictures are stretched."""
        return self.target_hw[1] / self.width

    @property
    def summary(self) -> str:
        """What becomes of the pictures, in words; sizes are width × height."""
        (source_h, source_w), (target_h, target_w) = self.source_hw, self.target_hw
        size = f"{source_w}x{source_h} → {target_w}x{target_h}"
        if self.identity:
            return f"{size}: as captured"
        cropped = "nothing is cropped"
        if self.top:
            cropped = f"{self.top:g} rows are cropped above and as many below"
        elif self.left:
            cropped = f"{self.left:g} columns are cropped on the left and as many on the right"
        return f"{size}: {cropped}, the rest is scaled by {self.scale:.4g}"


def fit_crop(source_hw: tuple[int, int], target_hw: tuple[int, int]) -> ResizedCrop:
    """The largest centred box of the target's aspect; its sides may fall inside a pixel."""
    source_h, source_w = source_hw
    target_h, target_w = target_hw
    if source_h * target_w <= source_w * target_h:  # a wider source: all of its height
        width, height = target_w * source_h / target_h, float(source_h)
    else:
        width, height = float(source_w), target_h * source_w / target_w
    return ResizedCrop(
        source_hw, target_hw, (source_w - width) / 2, (source_h - height) / 2, width, height
    )


def resample_frames(
    frames: UInt8[np.ndarray, "T H W 3"], crop: ResizedCrop
) -> UInt8[np.ndarray, "T h w 3"]:
    """Crop and scale, bicubic (a = −½); the filter's support grows with the shrink factor."""
    height, width = crop.target_hw
    scaled = [resample_picture(Image.fromarray(frame), crop) for frame in frames]
    return np.stack(scaled) if scaled else np.empty((0, height, width, 3), np.uint8)


def resample_picture(picture: Image.Image, crop: ResizedCrop) -> UInt8[np.ndarray, "h w 3"]:
    """`resample_frames` of one RGB picture.

    torch's kernel is Pillow's algorithm with weights of 16 bits in place of 32: five times as fast,
    the same on every processor, and off by one level in 1 of 100 values. It cannot start inside a
    pixel nor look beyond its input, so a box that asks for either is left to Pillow.
    """
    _check((picture.height, picture.width), crop)
    if crop.identity:
        return np.asarray(picture)
    height, width = crop.target_hw
    above = _margin(crop.top, crop.height, height, crop.source_hw[0])
    beside = _margin(crop.left, crop.width, width, crop.source_hw[1])
    if above is None or beside is None:
        return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC, box=crop.box))
    (rows, top, bottom), (columns, left, right) = above, beside
    pixels = torch.from_numpy(np.array(picture.crop((left, top, right, bottom))))[None]
    # permuted, the pixels are in channels_last memory format, and so are the scaled ones
    scaled = interpolate(
        pixels.permute(0, 3, 1, 2),
        (height + 2 * rows, width + 2 * columns),
        mode="bicubic",
        antialias=True,
    ).permute(0, 2, 3, 1)
    return np.asarray(scaled[0].numpy()[rows : rows + height, columns : columns + width])


def _margin(start: float, extent: float, target: int, source: int) -> tuple[int, int, int] | None:
    """How much more of a picture's side to scale, so that the filter sees what it reaches.

    Returns:
        The target pixels beyond each end of the box, and where the box with them starts and ends;
        None where that would be inside a pixel or outside the picture.
    """
    room = min(start, source - start - extent)
    if not (start.is_integer() and extent.is_integer()):
        return None
    scale = Fraction(int(extent), target)
    step = scale.denominator  # so many target pixels are whole source pixels
    beyond = step * math.ceil(_REACH * max(Fraction(1), 1 / scale) / step) if room else 0
    if beyond * scale > room or room < max(start, source - start - extent):
        return None
    return beyond, int(start - beyond * scale), int(start + extent + beyond * scale)


def resample_stencil(
    stencil: UInt8[np.ndarray, "*T H W"], crop: ResizedCrop
) -> UInt8[np.ndarray, "*T h w"]:
    """Crop and scale by the nearest source pixel: the one under the target pixel's centre."""
    _check(stencil.shape[-2:], crop)
    rows = _nearest(crop.top, crop.height, crop.target_hw[0], crop.source_hw[0])
    columns = _nearest(crop.left, crop.width, crop.target_hw[1], crop.source_hw[1])
    return stencil.take(rows, axis=-2).take(columns, axis=-1)


def _nearest(start: float, extent: float, target: int, source: int) -> np.ndarray:
    centres = start + (np.arange(target) + 0.5) * (extent / target)
    return np.asarray(np.minimum(np.floor(centres).astype(np.intp), source - 1))


def resample_cameras(
    world_to_clip: Float64[np.ndarray, "*batch 4 4"], crop: ResizedCrop
) -> Float64[np.ndarray, "*batch 4 4"]:
    """The cameras of the cropped and scaled picture: an affine map of clip x and y.

    With ndc = 2u/W − 1 and the crop's u' = (u − left)·W'/width:
    ndc_x' = ndc_x·W/width + (W − 2·left)/width − 1, and likewise for y, which points up.
    """
    source_h, source_w = crop.source_hw
    affine = np.eye(4)
    affine[0, 0] = source_w / crop.width
    affine[3, 0] = (source_w - 2 * crop.left) / crop.width - 1
    affine[1, 1] = source_h / crop.height
    affine[3, 1] = 1 - (source_h - 2 * crop.top) / crop.height
    return np.asarray(world_to_clip @ affine)


def _check(found_hw: tuple[int, ...], crop: ResizedCrop) -> None:
    if tuple(found_hw) != crop.source_hw:
        raise UserError(
            f"picture of {found_hw[0]} by {found_hw[1]} (height by width), expected "
            f"{crop.source_hw[0]} by {crop.source_hw[1]}: meta.json and the pictures disagree"
        )
