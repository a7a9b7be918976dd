"""Samples → a micro-batch: stacked tensors and every distinct prompt once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from gc25d.dataset.clips import Dropped, Sample
from gc25d.prep.text import TextTable
from gc25d.shapes import ContextIds, Latents, Prompts


@dataclass(frozen=True)
class Batch:
    """A micro-batch of B samples."""

    latents: Latents
    """[B, 48, F, h, w], normalised latents; frame 0 is the clean first frame."""
    prompts: Prompts
    """[P, L, dim], the distinct prompts of the batch in the order of their table ids."""
    prompt_lengths: Int[Tensor, " P"]
    """Real tokens of each prompt; the rows behind them are zero padding."""
    context_ids: ContextIds
    """[B, F], the prompt of each latent frame, as a row of `prompts`."""
    sem_ids: UInt8[Tensor, "B T H W"]
    """Semantic ids: 0..6 static, 10..15 player, 16..21 boss, 255 unknown."""
    clip_ids: list[str]
    epochs: list[int]
    indices: list[int]
    """With `epochs`, what the timestep and the noise of each sample are drawn from."""
    dropped: list[Dropped]

    def __len__(self) -> int:
        return len(self.clip_ids)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """On `device`, latents and prompts as `dtype`; integer tensors keep their types."""
        return replace(
            self,
            latents=self.latents.to(device, dtype, non_blocking=True),
            prompts=self.prompts.to(device, dtype, non_blocking=True),
            prompt_lengths=self.prompt_lengths.to(device, non_blocking=True),
            context_ids=self.context_ids.to(device, non_blocking=True),
            sem_ids=self.sem_ids.to(device, non_blocking=True),
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
