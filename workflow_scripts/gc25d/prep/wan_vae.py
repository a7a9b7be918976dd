"""Wan2.2's autoencoder through diffusers, from a local directory, imported late."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gc25d.errors import UserError
from gc25d.shapes import RgbFrames

_CHANNELS = 48


@dataclass(frozen=True)
class WanVaeCodec:
    """diffusers' `AutoencoderKLWan`; latents are z = (μ − mean) / std with the model's own figures.

    Runs in bf16 on a GPU and in fp32 on a CPU. The mode of the posterior is taken: no draw.
    """

    model: Any
    mean: Float[Tensor, "48 1 1 1"]
    std: Float[Tensor, "48 1 1 1"]

    @classmethod
    def load(cls, directory: Path, device: str) -> Self:
        """Load from `directory`, or from its `vae/` if it is a diffusers pipeline; no network.

        Raises:
            UserError: the directory is no such autoencoder of 48 channels.
        """
        from diffusers import AutoencoderKLWan

        inner = directory / "vae"
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        try:
            model = AutoencoderKLWan.from_pretrained(
                inner if inner.is_dir() else directory, torch_dtype=dtype, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"codec directory is {str(directory)!r}, expected the weights and config.json of "
                f"Wan2.2's autoencoder ({str(error).splitlines()[0]})"
            ) from None
        mean, std = model.config.latents_mean, model.config.latents_std
        if not model.config.z_dim == len(mean) == len(std) == _CHANNELS:
            raise UserError(
                f"{directory}: autoencoder of {model.config.z_dim} channels with {len(mean)} means "
                f"and {len(std)} deviations, expected {_CHANNELS} of each: use that of "
                "Wan2.2-TI2V-5B"
            )
        return cls(model.to(device).eval(), _column(mean, device), _column(std, device))

    @torch.no_grad()
    def encode(self, frames: RgbFrames) -> Float[Tensor, "48 F h w"]:
        """Frames uint8 RGB [T, H, W, 3] → float32 latents on the CPU."""
        video = torch.from_numpy(np.ascontiguousarray(frames.transpose(3, 0, 1, 2)))
        video = video.to(self.model.device).to(self.model.dtype) / 127.5 - 1
        mode = self.model.encode(video[None]).latent_dist.mode()[0]
        latents: Tensor = (mode.float() - self.mean) / self.std
        return latents.cpu()

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "48 F h w"]) -> RgbFrames:
        """Latents → frames uint8 RGB [T, H, W, 3]."""
        mode = latents.to(self.model.device).float() * self.std + self.mean
        video = self.model.decode(mode[None].to(self.model.dtype)).sample[0]
        pixels = ((video.float() + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)
        return np.asarray(pixels.permute(1, 2, 3, 0).cpu().numpy())


def _column(values: list[float], device: str) -> Tensor:
    return torch.tensor(values, device=device).reshape(-1, 1, 1, 1)
