"""Samples → a micro-batch: stacked tensors and every distinct prompt once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from gc25d.dataset.actions import Actions
from gc25d.dataset.clips import Dropped, Sample
from gc25d.prep.text import TextTable
from gc25d.shapes import ContextIds, Latents, Prompts


@dataclass(frozen=True)
class Draws:
    """What a training method drew for a micro-batch's samples."""

    index: Int[Tensor, "B ..."]
    """Points of the timestep grid, on the CPU."""
    noise: Latents
    """float32, shaped as the latents."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch of B samples."""

    latents: Latents
    """[B, 48, F, h, w], normalised latents; frame 0 is the clean first frame."""
    prompts: Prompts
    """[P, L, dim], the distinct prompts of the batch in the order of their table ids."""
    prompt_lengths: Int[Tensor, " P"]
    """Real tokens of each prompt, on the CPU; the rows behind them are zero padding."""
    context_ids: ContextIds
    """[B, F], the prompt of each latent frame, as a row of `prompts`."""
    sem_ids: UInt8[Tensor, "B T H W"]
    """Semantic ids: 0..6 static, 10..15 player, 16..21 boss, 255 unknown."""
    clip_ids: list[str]
    epochs: list[int]
    indices: list[int]
    """With `epochs`, what the timestep and the noise of each sample are drawn from."""
    dropped: list[Dropped]
    actions: Actions | None = None
    """Keyboard and mouse of each video frame, for models that take them; captures carry none."""
    draws: Draws | None = None
    """Made ahead of the training step (`TrainingMethod.draw_ahead`), or None."""

    def __len__(self) -> int:
        return len(self.clip_ids)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """On `device`, latents and prompts as `dtype`; integer tensors keep their types.

        `prompt_lengths` stay on the CPU, where the model reads them without waiting for a GPU.
        """
        return replace(
            self,
            # Copied in their own type, then converted there: half the bytes, and page-locked ones
            # are copied while the device computes.
            latents=self.latents.to(device, non_blocking=True).to(dtype),
            prompts=self.prompts.to(device, non_blocking=True).to(dtype),
            context_ids=self.context_ids.to(device, non_blocking=True),
            sem_ids=self.sem_ids.to(device, non_blocking=True),
            actions=self.actions and self.actions.to(device, dtype),
            draws=self.draws
            and replace(self.draws, noise=self.draws.noise.to(device, non_blocking=True)),
        )

    def pin_memory(self) -> Self:
        """In page-locked memory, which needs CUDA."""
        return replace(
            self,
            latents=self.latents.pin_memory(),
            prompts=self.prompts.pin_memory(),
            prompt_lengths=self.prompt_lengths.pin_memory(),
            context_ids=self.context_ids.pin_memory(),
            sem_ids=self.sem_ids.pin_memory(),
            actions=self.actions and self.actions.pin_memory(),
            draws=self.draws and replace(self.draws, noise=self.draws.noise.pin_memory()),
        )


def collate(samples: Sequence[Sample], table: TextTable) -> Batch:
    """Stack `samples` (at least one, all of one geometry) in the order given."""
    table_ids, context_ids = torch.unique(
        torch.stack([sample.context_ids for sample in samples]), sorted=True, return_inverse=True
    )
    return Batch(
        latents=_stacked([sample.input_latents for sample in samples]),
        prompts=table.embeddings[table_ids],
        prompt_lengths=table.lengths[table_ids],
        context_ids=context_ids,
        sem_ids=_stacked([sample.sem_ids for sample in samples]),
        clip_ids=[sample.clip_id for sample in samples],
        epochs=[sample.epoch for sample in samples],
        indices=[sample.index for sample in samples],
        dropped=[sample.dropped for sample in samples],
    )


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One more axis in front; a lone tensor, which may be 32 MB of ids, is not copied."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))
