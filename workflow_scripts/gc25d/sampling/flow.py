"""Flow matching as Wan2.2 trains it: the shifted grid, its loss weights, noising and target."""

import torch
from torch import Tensor

GRID_POINTS = 1000
TRAIN_SHIFT = 5.0
TIMESTEPS_PER_SIGMA = 1000.0


def shifted_sigmas(points: int, shift: float) -> Tensor:
    """Noise levels from 1 down, without 0: σ = linspace(1, 0, points + 1)[:-1], shifted.

    The shift maps σ to s·σ / (1 + (s − 1)·σ). Returns float32 [points], computed in float64.
    """
    sigma = torch.linspace(1, 0, points + 1, dtype=torch.float64)[:-1]
    return (shift * sigma / (1 + (shift - 1) * sigma)).float()


def training_grid() -> Tensor:
    """The 1000 timesteps t = 1000·σ of training, float32 [1000], descending."""
    return shifted_sigmas(GRID_POINTS, TRAIN_SHIFT) * TIMESTEPS_PER_SIGMA


def training_weights(grid: Tensor) -> Tensor:
    """Loss weight of each grid point, float32, mean 1.

    w(t) = exp(−2·((t − 500)/1000)²) minus its minimum over the grid (Wan's training weights).
    """
    bell = torch.exp(-2 * ((grid.double() - 500) / 1000) ** 2)
    raised = bell - bell.min()
    return (raised / raised.mean()).float()


def nearest_grid_index(grid: Tensor, timestep: float) -> int:
    """Index of the grid point nearest to `timestep`."""
    return int((grid - timestep).abs().argmin())


def add_noise(clean: Tensor, noise: Tensor, timestep: Tensor) -> Tensor:
    """x_t = (1 − σ)·x0 + σ·ε with σ = t/1000; `timestep` broadcasts against the latents."""
    sigma = timestep / TIMESTEPS_PER_SIGMA
    return (1 - sigma) * clean + sigma * noise


def clean_estimate(noisy: Tensor, velocity: Tensor, timestep: Tensor) -> Tensor:
    """x̂0 = x_t − σ·v with σ = t/1000, in float32; `timestep` broadcasts against the latents."""
    return noisy.float() - timestep / TIMESTEPS_PER_SIGMA * velocity.float()


def velocity(clean: Tensor, noise: Tensor) -> Tensor:
    """The regression target ε − x0."""
    return noise - clean


def condition_first_frame(noisy: Tensor, clean: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """Make latent frame 0 the clean first frame (TI2V).

    Args:
        noisy: [B, C, F, h, w]; not modified.
        clean: [B, C, F, h, w].
        timestep: [B], of the noised frames.

    Returns:
        The model's input [B, C, F, h, w] and its timesteps [B, F] (0 for frame 0).
    """
    return clean_first_frame(noisy, clean, timestep[:, None].expand(-1, noisy.shape[2]))


def clean_first_frame(noisy: Tensor, clean: Tensor, per_frame: Tensor) -> tuple[Tensor, Tensor]:
    """`condition_first_frame` of frames with timesteps of their own, `per_frame` [B, F]."""
    inputs = torch.cat([clean[:, :, :1], noisy[:, :, 1:]], dim=2)
    timesteps = per_frame.clone()
    timesteps[:, 0] = 0
    return inputs, timesteps


def frame_errors(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each frame but the first, float32 [B, F − 1]."""
    difference = prediction[:, :, 1:].float() - target[:, :, 1:].float()
    return difference.square().mean((1, 3, 4))


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample over all frames but the first, float32 [B]."""
    difference = prediction[:, :, 1:].float() - target[:, :, 1:].float()
    return difference.square().flatten(1).mean(1)


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Share of the learning rate at optimizer step `step` (0-based): linear, then constant."""
    return 1.0 if warmup_steps == 0 else min(1.0, (step + 1) / warmup_steps)
