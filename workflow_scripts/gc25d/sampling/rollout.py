"""Sampling a block-causal model chunk by chunk, the past read from a key-value cache.

A chunk is denoised over the whole schedule while the clean frames before it are only read. Then one
more pass at timestep 0 adds the finished chunk to the cache. Guidance has a cache for each of its
branches: what a branch sees of the past was computed under its own conditions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gc25d.model.semantic import video_frames
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.wan.kv_cache import KvCache
from gc25d.sampling.sample import Conditions, Plan, branches, denoise, guided
from gc25d.shapes import Latents


@dataclass(frozen=True)
class _Branch:
    """One branch of guidance: its conditions and its past."""

    away: float
    given: Conditions
    cache: KvCache

    def of_frames(self, start: int, stop: int) -> Self:
        """The branch with the conditions of latent frames `start` to `stop` − 1."""
        ids = self.given.sem_ids
        shown = replace(
            self.given,
            context_ids=self.given.context_ids[:, start:stop],
            sem_ids=None if ids is None else ids[:, video_frames(start, stop - start)],
        )
        return replace(self, given=shown)

    def predict(
        self, model: CausalWanModel, x: Tensor, timestep: Tensor, *, write: bool = False
    ) -> Tensor:
        """The velocity of the chunk's latents x at timesteps [B, f]."""
        shown = (*self.given.texts, self.given.sem_ids, self.cache)
        output = model.forward_chunk(x, timestep, *shown, write=write, **self.given.acted)
        return output.prediction.float()


def rollout_steps(model: CausalWanModel, frames: int, plan: Plan) -> int:
    """Steps that `roll_out` counts for videos of so many latent frames: the plan's for a chunk."""
    return plan.steps * -(-frames // model.chunk_frames)


@torch.inference_mode()
def roll_out(
    model: CausalWanModel,
    given: Conditions,
    noise: Latents,
    plan: Plan,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> Latents:
    """Sample latents float32 [B, C, F, h, w]; frame 0 is `given.first`, bit for bit.

    Args:
        model: predicts ε − x0; frame 0 has timestep 0 in every call.
        given: the conditions of the B clips.
        noise: [B, C, F, h, w] on the model's device; frame 0 is not used.
        plan: steps of each chunk, and guidance.
        progress: called with the number of steps done, after each (`rollout_steps` in all).
    """
    batch, _, frames, *cells = noise.shape
    x = torch.cat([given.first.float(), noise[:, :, 1:].float()], dim=2)
    asked = [
        _Branch(away, shown, model.new_cache(batch, (frames, *cells)))
        for away, shown in branches(given, plan)
    ]
    for number, start in enumerate(range(0, frames, model.chunk_frames)):
        stop = min(start + model.chunk_frames, frames)
        chunk = [branch.of_frames(start, stop) for branch in asked]
        report = _counting_on(progress, number * plan.steps)
        x[:, :, start:stop] = _sample_chunk(
            model, chunk, x[:, :, start:stop], int(start == 0), plan, report
        )
        if stop < frames:
            _remember(model, chunk, x[:, :, start:stop])
    return x


def _sample_chunk(
    model: CausalWanModel,
    chunk: Sequence[_Branch],
    x: Latents,
    clean: int,
    plan: Plan,
    report: Callable[[int], None],
) -> Latents:
    """Denoise the frames of x after the first `clean`; the caches are only read."""

    def velocity(x: Tensor, timestep: Tensor) -> Tensor:
        return guided([(branch.away, branch.predict(model, x, timestep)) for branch in chunk])

    if x.shape[2] == clean:
        return x
    return denoise(velocity, x, clean, plan, report)


def _remember(model: CausalWanModel, chunk: Sequence[_Branch], x: Latents) -> None:
    """Add finished frames to every branch's cache."""
    timestep = x.new_zeros(x.shape[0], x.shape[2])
    for branch in chunk:
        branch.predict(model, x, timestep, write=True)


def _counting_on(progress: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda done: progress(before + done)
