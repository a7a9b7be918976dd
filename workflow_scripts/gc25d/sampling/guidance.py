"""Guided predictions of a teacher: what the conditions change is amplified."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.prep.parts import UNKNOWN
from gc25d.sampling.predict import predict


class NullPrompt(NamedTuple):
    """The empty prompt as the text table has it."""

    embedding: Tensor
    """[L, dim], zero behind its tokens."""
    length: int
    """Its tokens."""


@dataclass(frozen=True)
class Guidance:
    """Guidance scales; 1 costs no extra forward pass.

    v = v_full + (cfg − 1)·(v_full − v_nulltext) + (sem_cfg − 1)·(v_full − v_unknown), which for
    text alone is classifier-free guidance (Ho and Salimans, arXiv:2207.12598).
    """

    cfg: float = 1.0
    sem_cfg: float = 1.0
    null_prompt: NullPrompt | None = None
    """Needed for text guidance only."""


def guided_velocity(
    model: nn.Module, latents: Tensor, timestep: Tensor, batch: Batch, guidance: Guidance
) -> Tensor:
    """The guided velocity, float32, as the latents [B, C, F, h, w].

    Raises:
        ValueError: text guidance without the empty prompt.
    """
    full = predict(model, latents, timestep, batch).prediction.float()
    guided = full
    if guidance.cfg != 1:
        if guidance.null_prompt is None:
            raise ValueError("text guidance needs the empty prompt")
        empty = null_text(batch, guidance.null_prompt)
        without = predict(model, latents, timestep, empty).prediction.float()
        guided = guided + (guidance.cfg - 1) * (full - without)
    if guidance.sem_cfg != 1:
        unknown = replace(batch, sem_ids=torch.full_like(batch.sem_ids, UNKNOWN))
        without = predict(model, latents, timestep, unknown).prediction.float()
        guided = guided + (guidance.sem_cfg - 1) * (full - without)
    return guided


def null_text(batch: Batch, prompt: NullPrompt) -> Batch:
    """The batch with the empty prompt in every latent frame."""
    return replace(
        batch,
        prompts=prompt.embedding[None].to(batch.prompts),
        prompt_lengths=torch.full_like(batch.prompt_lengths[:1], prompt.length),
        context_ids=torch.zeros_like(batch.context_ids),
    )
