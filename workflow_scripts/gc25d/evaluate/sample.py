"""Text- and image-to-video sampling: Euler steps along the learned velocity, first frame given.

With x_σ = (1 − σ)·x0 + σ·ε the velocity is v = ε − x0, so a step from σ to σ' is
x ← x + (σ' − σ)·v. The noise levels are those of the training grid's formula, shifted, down to 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from gc25d.dataset.draws import torch_seed
from gc25d.methods.flow import TIMESTEPS_PER_SIGMA, shifted_sigmas
from gc25d.model.wan import WanOutput
from gc25d.prep.parts import UNKNOWN
from gc25d.records import digest_bytes
from gc25d.shapes import ContextIds, Latents, Prompts


class VelocityModel(Protocol):
    """What is sampled: a `WanModel`, or anything called like one."""

    def __call__(
        self,
        latents: Tensor,
        timestep: Tensor,
        prompts: Tensor,
        prompt_lengths: Tensor,
        context_ids: Tensor,
        sem_ids: Tensor | None,
    ) -> WanOutput:
        """Predict the velocity of `latents`."""
        ...


@dataclass(frozen=True)
class Plan:
    """How to sample. A guidance scale of 1 costs no extra forward pass.

    v = v_full + (cfg − 1)·(v_full − v_nulltext) + (sem_cfg − 1)·(v_full − v_unknown)
    """

    steps: int
    shift: float
    cfg: float = 1.0
    sem_cfg: float = 1.0


@dataclass(frozen=True)
class Conditions:
    """What is given of B clips, on the model's device (prompt lengths may stay on the CPU).

    Attributes:
        first: clean latents of frame 0, [B, C, 1, h, w].
        prompts: distinct embeddings [P, L, text_dim]; `prompt_lengths` int64 [P].
        context_ids: int64 [B, F] into `prompts`.
        null_prompt: index of the empty prompt in `prompts`; needed for text guidance only.
        sem_ids: uint8 [B, T, H, W]; None for a model without a semantic condition.
    """

    first: Latents
    prompts: Prompts
    prompt_lengths: Tensor
    context_ids: ContextIds
    null_prompt: int | None
    sem_ids: Tensor | None


def starting_noise(seed: int, clip_ids: Sequence[str], shape: Sequence[int]) -> Latents:
    """Noise of each clip, float32 [B, *shape], drawn on the CPU from (seed, clip id) alone.

    Neither the device nor the other clips of the batch change a clip's noise.
    """
    drawn = []
    for clip_id in clip_ids:
        number = int(digest_bytes(clip_id.encode())[:8], 16)
        generator = torch.Generator().manual_seed(torch_seed(seed, "sample", number))
        drawn.append(torch.randn(shape, generator=generator))
    return torch.stack(drawn)


@torch.inference_mode()
def sample(
    model: VelocityModel,
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
        plan: steps and guidance.
        progress: called with the number of steps done, after each.
    """
    first = given.first.float()
    batch, frames = noise.shape[0], noise.shape[2]
    sigmas = [*shifted_sigmas(plan.steps, plan.shift).tolist(), 0.0]
    x = torch.cat([first, noise[:, :, 1:].float()], dim=2)
    for done, (sigma, following) in enumerate(pairwise(sigmas), start=1):
        timestep = torch.full((batch, frames), sigma * TIMESTEPS_PER_SIGMA, device=x.device)
        timestep[:, 0] = 0
        x = x + (following - sigma) * _guided_velocity(model, x, timestep, given, plan)
        x[:, :, :1] = first
        progress(done)
    return x


def _guided_velocity(
    model: VelocityModel, x: Tensor, timestep: Tensor, given: Conditions, plan: Plan
) -> Tensor:
    def velocity(context_ids: Tensor, sem_ids: Tensor | None) -> Tensor:
        output = model(x, timestep, given.prompts, given.prompt_lengths, context_ids, sem_ids)
        return output.prediction.float()

    full = velocity(given.context_ids, given.sem_ids)
    guided = full
    if plan.cfg != 1:
        if given.null_prompt is None:
            raise ValueError("text guidance needs the empty prompt among the prompts")
        empty = torch.full_like(given.context_ids, given.null_prompt)
        guided = guided + (plan.cfg - 1) * (full - velocity(empty, given.sem_ids))
    if plan.sem_cfg != 1 and given.sem_ids is not None:
        unknown = torch.full_like(given.sem_ids, UNKNOWN)
        guided = guided + (plan.sem_cfg - 1) * (full - velocity(given.context_ids, unknown))
    return guided
