"""One call of a model with what a batch says of its clips."""

from typing import cast

from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.model.interface import ModelOutput


def predict(model: nn.Module, latents: Tensor, timestep: Tensor, batch: Batch) -> ModelOutput:
    """The velocity of noisy latents [B, C, F, h, w] under the batch's conditions.

    `timestep` is float32 [B, F], 0 for a clean frame.
    """
    given: tuple[object, ...] = (
        batch.prompts,
        batch.prompt_lengths,
        batch.context_ids,
        batch.sem_ids,
    )
    if batch.actions is not None:
        given = (*given, batch.actions)
    return cast(ModelOutput, model(latents, timestep, *given))
