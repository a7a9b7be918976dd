"""Wan2.2's autoencoder from a local directory: latents z = (μ − mean) / std, no draw.

The model is diffusers' `AutoencoderKLWan`, imported late. One clip at a time is encoded, in passes
of so many frames as keep a GPU busy: a batch would make a clip's bytes depend on its neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gc25d.finite import check_finite
from gc25d.prep.encoders.wan_checkpoint import CHANNELS, load_autoencoder
from gc25d.prep.encoders.wan_layers import use_channels_last, use_fast_layers
from gc25d.shapes import RgbFrames

_GROUP = 4  # frames of a latent frame; the first frame has one of its own
_PASS_PIXELS = 16 * 480 * 832  # of a pass, at most: about 4 GB of activations


@dataclass(frozen=True)
class Speed:
    """How the encoder runs; each choice gives the same latents up to rounding."""

    fast_layers: bool = True
    """Fused norms and convolutions that pad by themselves (`gc25d.prep.encoders.wan_layers`)."""
    channels_last: bool = True
    """Memory layout of weights and activations."""
    pass_frames: int = 0
    """Frames of a pass, a multiple of 4; 0 chooses by the size of a frame."""
    compiled: bool = False
    """`torch.compile` the encoder, the default on a GPU: a third faster, but the first clip of the
    first job waits for the compiler (later jobs find its work in the cache)."""


@dataclass(frozen=True)
class WanVaeCodec:
    """diffusers' `AutoencoderKLWan` with its own mean and deviation for each channel.

    Runs in bf16 on a GPU and in fp32 on a CPU, with repeatable kernels only.
    """

    model: Any
    encoder: Any
    """`model.encoder`, or the compiled form of it."""
    mean: Float[Tensor, "48 1 1 1"]
    std: Float[Tensor, "48 1 1 1"]
    speed: Speed

    @classmethod
    def load(cls, directory: Path, device: str, speed: Speed | None = None) -> Self:
        """Load from `directory`, or from its `vae/` if it is a diffusers pipeline; no network.

        Raises:
            UserError: the directory does not hold Wan2.2's autoencoder of 48 channels, whole.
        """
        speed = speed or Speed(compiled=device.startswith("cuda"))
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        model = load_autoencoder(directory, torch.device(device), dtype)
        if speed.fast_layers:
            use_fast_layers(model)
        if speed.channels_last:
            use_channels_last(model)
        encoder = torch.compile(model.encoder, dynamic=False) if speed.compiled else model.encoder
        mean, std = model.config.latents_mean, model.config.latents_std
        return cls(model, encoder, _column(mean, device), _column(std, device), speed)

    @torch.no_grad()
    def encode(self, frames: RgbFrames) -> Float[Tensor, "48 F h w"]:
        """Frames uint8 RGB [T, H, W, 3] → float32 latents on the CPU; T = 4n + 1."""
        with _repeatable():
            mode = self._posterior_mean(torch.from_numpy(frames).to(self.model.device))
            latents: Tensor = (mode.float() - self.mean) / self.std
            return latents.cpu()

    def _posterior_mean(self, frames: Tensor) -> Float[Tensor, "48 F h w"]:
        """μ of uint8 frames [T, H, W, 3], as `model.encode(…).latent_dist.mode()` has it.

        The encoder's caches carry what a pass needs of the frames before it, so any number of
        frames may follow the first; the library itself takes four at a time.
        """
        from diffusers.models.autoencoders.autoencoder_kl_wan import patchify

        count, height, width, _ = frames.shape
        cache: list[Tensor | None] = [None] * self.model._cached_conv_counts["encoder"]
        encoded = []
        for start, stop in passes(count, self._pass_frames(height, width)):
            video = (frames[start:stop].float() / 127.5 - 1).to(self.model.dtype)
            patches = patchify(video.permute(3, 0, 1, 2)[None], self.model.config.patch_size)
            if self.speed.channels_last:
                patches = patches.contiguous(memory_format=torch.channels_last_3d)
            encoded.append(self.encoder(patches, feat_cache=cache, feat_idx=[0]))
        moments: Tensor = self.model.quant_conv(torch.cat(encoded, dim=2))
        return moments[0, :CHANNELS]

    def _pass_frames(self, height: int, width: int) -> int:
        groups = _PASS_PIXELS // (height * width * _GROUP)
        return self.speed.pass_frames or max(1, groups) * _GROUP

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "48 F h w"]) -> RgbFrames:
        """Latents → frames uint8 RGB [T, H, W, 3]; one latent frame at a time, so never tiled.

        Raises:
            UserError: the frames are not finite.
        """
        with _repeatable():
            mode = latents.to(self.model.device).float() * self.std + self.mean
            video = self.model.decode(mode[None].to(self.model.dtype)).sample[0]
            check_finite(video, "decoded frames", "check the latents and the codec's weights")
            pixels = ((video.float() + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)
            return np.asarray(pixels.permute(1, 2, 3, 0).cpu().numpy())


def passes(count: int, frames: int) -> Iterator[tuple[int, int]]:
    """Frame ranges of the encoder's passes: the first frame alone, then `frames` at a time."""
    yield 0, 1
    for start in range(1, count, frames):
        yield start, min(start + frames, count)


def _repeatable() -> Any:
    """Kernels chosen by rule, never by timing, and only those whose sums have a fixed order."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)


def _column(values: list[float], device: str) -> Tensor:
    return torch.tensor(values, device=device).reshape(-1, 1, 1, 1)
