"""Seeded synthetic micro-batches: small, on the CPU, the same on every machine."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gc25d.dataset.actions import random_actions
from gc25d.dataset.batch import Batch
from gc25d.dataset.clips import Dropped

KNOWN_IDS = (0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 255)


@dataclass(frozen=True)
class BatchShape:
    """Sizes of a fixture: B samples of F latent frames of h × w cells, P prompts of L tokens."""

    batch: int = 2
    frames: int = 3
    height: int = 6
    width: int = 10
    prompts: int = 3
    text_len: int = 16
    text_dim: int = 32
    channels: int = 48
    prompt_std: float = 3.0
    """Standard deviation of a prompt's numbers."""
    keys: int = 0
    """Keys of the keyboard; 0 makes no actions."""


def synthetic_batch(shape: BatchShape, seed: int) -> Batch:
    """A batch on the CPU, float32: noise latents, prompts of several lengths, blocky ids."""
    generator = torch.Generator().manual_seed(seed)

    def whole(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=generator)

    lengths = 1 + whole(shape.text_len, shape.prompts)
    prompts = torch.randn(shape.prompts, shape.text_len, shape.text_dim, generator=generator)
    real = torch.arange(shape.text_len) < lengths[:, None]
    latents = (shape.batch, shape.channels, shape.frames, shape.height, shape.width)
    nothing = Dropped(text=False, cond=False, mask=0.0)
    return Batch(
        latents=torch.randn(latents, generator=generator),
        prompts=shape.prompt_std * prompts * real[..., None],
        prompt_lengths=lengths,
        context_ids=whole(shape.prompts, shape.batch, shape.frames),
        sem_ids=_blocky_ids(shape, whole),
        clip_ids=[f"synthetic-{i}" for i in range(shape.batch)],
        epochs=[0] * shape.batch,
        indices=list(range(shape.batch)),
        dropped=[nothing] * shape.batch,
        actions=random_actions(shape.batch, video_length(shape), shape.keys, generator)
        if shape.keys
        else None,
    )


def video_length(shape: BatchShape) -> int:
    """Video frames T of the latent frames."""
    return 4 * (shape.frames - 1) + 1


def _blocky_ids(shape: BatchShape, whole: Callable[..., Tensor]) -> Tensor:
    """Ids uint8 [B, T, H, W] in blocks of 8 × 8 pixels, every class of `parts` likely there."""
    sides = 2 * shape.height, 2 * shape.width
    classes = whole(len(KNOWN_IDS), shape.batch, video_length(shape), *sides)
    blocks = torch.tensor(KNOWN_IDS, dtype=torch.uint8)[classes]
    return blocks.repeat_interleave(8, 2).repeat_interleave(8, 3)
