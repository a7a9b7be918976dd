"""Frames ↔ latents: the embedded DCT codec, and the choice between codecs.

Both codecs make 48 channels of 16×16 pixels, the first frame alone and then groups of 4 frames.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gc25d.errors import UserError
from gc25d.finite import check_finite
from gc25d.prep.encoders.wan_vae import WanVaeCodec
from gc25d.shapes import RgbFrames

CHANNELS = 48
PATCH = 16
GROUP = 4


class Codec(Protocol):
    """What turns a clip into latents and back."""

    def encode(self, frames: RgbFrames) -> Float[Tensor, "48 F h w"]:
        """Frames uint8 RGB → float32 latents of the order of 1."""

    def decode(self, latents: Float[Tensor, "48 F h w"]) -> RgbFrames:
        """Latents of any float type → frames uint8 RGB [T, H, W, 3]; not finite: UserError."""


def codec_for(name: str, directory: str, device: str = "cpu") -> Codec:
    """The codec `name`: `dct`, or `wan_vae` from a local directory, on `device`.

    Raises:
        UserError: unknown name, or the directory does not hold the autoencoder.
    """
    if name == "dct":
        return DctCodec()
    if name == "wan_vae":
        return WanVaeCodec.load(Path(directory), device)
    raise UserError(f"codec is {name!r}, expected 'dct' or 'wan_vae'")


class Coefficient(NamedTuple):
    """One channel: a product of cosines in colour, time, row and column, and its scale."""

    colour: int
    """0: R + G + B, 1: R - B, 2: R - 2G + B, each of unit length: the DCT of (R, G, B)."""
    time: int
    row: int
    column: int
    std: float
    """Standard deviation on captured frames in -1..1."""
    mean: float = 0.0

    @property
    def scale(self) -> float:
        """What a latent is multiplied with: the geometric mean of its std and the strongest's.

        Latents then have a std of sqrt(std / strongest): weaker coefficients stay weaker, so the
        loss looks at what can be seen. With unit variance for all, a small model spends itself on
        fine detail that it cannot predict (sampled videos after 400 steps: 20.8 dB, against 22.5).
        """
        return math.sqrt(self.std * _TABLE[0][4])


# The 48 of the 3,072 coefficients of a 4×16×16 RGB block with the most energy, strongest first,
# over the 72 clips of 17 frames of 96×160 that the default settings capture (four runs each of
# deadly_corridor, defend_the_center and health_gathering), with their standard deviations there to
# two digits. They keep 41 luma and 7 colour, 28 still and 20 moving coefficients.
# Columns: colour, time, row, column, std, and the mean where it is not small.
_TABLE: tuple[tuple[int, int, int, int, float] | tuple[int, int, int, int, float, float], ...] = (
    (0, 0, 0, 0, 13.0, -33.9), (1, 0, 0, 0, 3.5, 3.1), (0, 0, 1, 0, 3.1), (2, 0, 0, 0, 2.2),
    (0, 0, 0, 1, 1.5), (0, 0, 2, 0, 1.5), (0, 1, 0, 0, 1.4), (1, 0, 1, 0, 1.2),
    (0, 0, 1, 1, 1.0), (0, 0, 3, 0, 0.99), (0, 1, 1, 0, 0.9), (0, 1, 0, 1, 0.8),
    (0, 0, 2, 1, 0.79), (0, 0, 0, 2, 0.77), (0, 2, 0, 0, 0.77), (0, 0, 4, 0, 0.73),
    (0, 1, 2, 0, 0.7), (0, 0, 1, 2, 0.59), (0, 0, 5, 0, 0.59), (0, 0, 0, 3, 0.59),
    (0, 3, 0, 0, 0.58), (0, 2, 0, 1, 0.58), (0, 2, 1, 0, 0.57), (1, 0, 2, 0, 0.55),
    (0, 0, 0, 4, 0.54), (0, 3, 0, 1, 0.54), (0, 0, 3, 1, 0.54), (0, 0, 1, 3, 0.54),
    (0, 1, 1, 1, 0.54), (0, 0, 2, 2, 0.52), (0, 1, 3, 0, 0.52), (0, 1, 2, 1, 0.51),
    (0, 0, 6, 0, 0.47), (2, 0, 1, 0, 0.44), (0, 1, 0, 2, 0.46), (0, 0, 4, 1, 0.46),
    (1, 0, 0, 1, 0.45), (0, 0, 1, 4, 0.44), (0, 3, 1, 0, 0.42), (0, 2, 2, 0, 0.41),
    (0, 2, 0, 2, 0.41), (0, 1, 4, 0, 0.41), (0, 2, 1, 1, 0.41), (0, 0, 3, 2, 0.4),
    (0, 3, 0, 2, 0.4), (1, 1, 0, 0, 0.39), (0, 0, 7, 0, 0.39), (0, 0, 5, 1, 0.38),
)  # fmt: skip
COEFFICIENTS = tuple(Coefficient(*row) for row in _TABLE)


def _cosines(length: int, frequency: int) -> np.ndarray:
    """Basis vector `frequency` of the orthonormal DCT-II of `length` points."""
    angles = np.pi * (np.arange(length) + 0.5) * frequency / length
    return np.asarray(np.cos(angles) * np.sqrt((1 if frequency == 0 else 2) / length))


def dct_basis() -> Float[Tensor, "48 3072"]:
    """Orthonormal rows: each channel as a 4×16×16×3 block (time, row, column, colour), float32."""
    blocks = [
        np.einsum(
            "t,y,x,c->tyxc",
            _cosines(GROUP, kept.time),
            _cosines(PATCH, kept.row),
            _cosines(PATCH, kept.column),
            _cosines(3, kept.colour),
        )
        for kept in COEFFICIENTS
    ]
    return torch.from_numpy(np.stack(blocks).reshape(CHANNELS, -1).astype(np.float32))


class DctCodec:
    """48 coefficients of the 4-D DCT of each 4×16×16 block of RGB in −1..1; needs no weights.

    The first frame is coded as four equal frames, so that a channel means the same in every latent
    frame; its moving coefficients are 0 before scaling. Decoding inverts the transform exactly, up
    to the coefficients that were cut. Both use one thread: on some processors the bits of a matrix
    product depend on how many share it.
    """

    def __init__(self) -> None:
        self._basis = dct_basis()
        self._mean = torch.tensor([kept.mean for kept in COEFFICIENTS])
        self._scale = torch.tensor([kept.scale for kept in COEFFICIENTS])

    def encode(self, frames: RgbFrames) -> Float[Tensor, "48 F h w"]:
        """Frames uint8 RGB [T, H, W, 3] → float32 latents; T = 4n + 1, sides multiples of 16."""
        _, height, width, _ = frames.shape
        groups = np.concatenate([np.repeat(frames[:1], GROUP - 1, axis=0), frames])
        groups = groups.reshape(-1, GROUP, height, width, 3)
        with _one_thread():
            return torch.stack([self._encode_group(torch.from_numpy(g)) for g in groups], dim=1)

    def _encode_group(self, group: Tensor) -> Tensor:
        """uint8 [4, H, W, 3] → float32 [48, h, w]."""
        height, width = group.shape[1] // PATCH, group.shape[2] // PATCH
        blocks = (group.float() / 127.5 - 1).reshape(GROUP, height, PATCH, width, PATCH, 3)
        rows = blocks.permute(1, 3, 0, 2, 4, 5).reshape(height * width, -1)
        scaled = (rows @ self._basis.T - self._mean) / self._scale
        return scaled.T.reshape(CHANNELS, height, width)

    def decode(self, latents: Float[Tensor, "48 F h w"]) -> RgbFrames:
        """Latents of any float type → frames uint8 RGB [4·(F − 1) + 1, 16·h, 16·w, 3].

        Raises:
            UserError: the frames are not finite.
        """
        values = latents.float().cpu()
        with _one_thread():
            groups = [self._decode_group(values[:, frame]) for frame in range(values.shape[1])]
        groups[0] = groups[0].mean(dim=0, keepdim=True)
        frames = (torch.cat(groups) + 1) * 127.5
        check_finite(frames, "decoded frames", "check the latents")
        return np.asarray(frames.clamp(0, 255).round().to(torch.uint8).numpy())

    def _decode_group(self, latents: Tensor) -> Tensor:
        """float32 [48, h, w] → float32 [4, H, W, 3] in −1..1."""
        _, height, width = latents.shape
        rows = latents.reshape(CHANNELS, -1).T * self._scale + self._mean
        blocks = (rows @ self._basis).reshape(height, width, GROUP, PATCH, PATCH, 3)
        return blocks.permute(2, 0, 3, 1, 4, 5).reshape(GROUP, height * PATCH, width * PATCH, 3)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Torch computes with the calling thread alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
