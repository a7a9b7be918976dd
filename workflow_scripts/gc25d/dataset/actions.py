"""What a player does in each video frame: keys held and mouse movement."""

from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor

_FRAMES = 4  # video frames of a latent frame after the first


class Actions(NamedTuple):
    """The actions of B clips. The action of frame t leads from frame t to frame t + 1."""

    keyboard: Float[Tensor, "B T n"]
    """Multi-hot: 1 for each of n keys that is held."""
    mouse: Float[Tensor, "B T 2"]
    """Movement right and down in that frame, in shares of the picture."""

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """On `device`, as `dtype` if one is given."""
        parts = (part.to(device, dtype or part.dtype, non_blocking=True) for part in self)
        return type(self)(*parts)

    def pin_memory(self) -> Self:
        """In page-locked memory, which needs CUDA."""
        return type(self)(*(part.pin_memory() for part in self))


def random_actions(batch: int, frames: int, keys: int, generator: torch.Generator) -> Actions:
    """Random actions for checks, float32 on the CPU: a key is held with probability ½."""
    keyboard = torch.randint(2, (batch, frames, keys), generator=generator).float()
    return Actions(keyboard, 0.1 * torch.randn(batch, frames, 2, generator=generator))


class ActionWindows(NamedTuple):
    """The actions that each latent frame of a video sees, from its first on."""

    keyboard: Float[Tensor, "B F R n"]
    """Keys of R video frames."""
    mouse: Float[Tensor, "B F R 2"]
    """Movement of the same video frames."""


def action_windows(actions: Actions, frames: int, span: int) -> ActionWindows:
    """Windows over the actions for each of the first `frames` latent frames.

    Latent frame i shows video frames 4i − 3 to 4i. It sees the actions of the 4·`span` video frames
    from 4i − 4·`span` to 4i − 1, the last of which leads to its last frame. Before the video's
    start the first action is repeated.
    """
    return ActionWindows(*(_windows(part, frames, _FRAMES * span) for part in actions))


def _windows(signal: Tensor, frames: int, width: int) -> Tensor:
    """[B, T, n] → [B, frames, width, n]."""
    before = signal[:, :1].expand(-1, width, -1)
    padded = torch.cat([before, signal], dim=1)
    return padded.unfold(1, width, _FRAMES)[:, :frames].transpose(2, 3)
