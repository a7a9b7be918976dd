"""Text- and image-to-video sampling: Euler steps along the learned velocity, first frame given.

With x_σ = (1 − σ)·x0 + σ·ε the velocity is v = ε − x0, so a step from σ to σ' is
x ← x + (σ' − σ)·v. The noise levels are those of the training grid's formula, shifted, down to 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from gc25d.dataset.actions import Actions
from gc25d.dataset.draws import torch_seed
from gc25d.files import digest_bytes
from gc25d.model.interface import ModelOutput
from gc25d.prep.parts import UNKNOWN
from gc25d.sampling.flow import TIMESTEPS_PER_SIGMA, shifted_sigmas
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
    ) -> ModelOutput:
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
        actions: of all video frames; None for a model that takes none.
    """

    first: Latents
    prompts: Prompts
    prompt_lengths: Tensor
    context_ids: ContextIds
    null_prompt: int | None
    sem_ids: Tensor | None
    actions: Actions | None = None

    @property
    def texts(self) -> tuple[Prompts, Tensor, ContextIds]:
        """What a model is told of the prompts."""
        return self.prompts, self.prompt_lengths, self.context_ids

    @property
    def acted(self) -> dict[str, Any]:
        """The actions as a model's further argument, for those that take them."""
        return {} if self.actions is None else {"actions": self.actions}


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
    x = torch.cat([given.first.float(), noise[:, :, 1:].float()], dim=2)
    asked = branches(given, plan)

    def velocity(x: Tensor, timestep: Tensor) -> Tensor:
        return guided([(away, _predict(model, x, timestep, shown)) for away, shown in asked])

    return denoise(velocity, x, 1, plan, progress)


def denoise(
    velocity: Callable[[Tensor, Tensor], Tensor],
    x: Latents,
    clean: int,
    plan: Plan,
    progress: Callable[[int], None],
) -> Latents:
    """Euler steps from noise to data.

    Args:
        velocity: of latents [B, C, f, h, w] at timesteps [B, f].
        x: float32, noise after the first `clean` frames, which stay as they are, at timestep 0.
        clean: frames given.
        plan: steps and shift.
        progress: called with the number of steps done, after each.
    """
    first = x[:, :, :clean]
    sigmas = [*shifted_sigmas(plan.steps, plan.shift).tolist(), 0.0]
    for done, (sigma, following) in enumerate(pairwise(sigmas), start=1):
        timestep = x.new_full((x.shape[0], x.shape[2]), sigma * TIMESTEPS_PER_SIGMA)
        timestep[:, :clean] = 0
        x = x + (following - sigma) * velocity(x, timestep)
        x[:, :, :clean] = first
        progress(done)
    return x


def branches(given: Conditions, plan: Plan) -> list[tuple[float, Conditions]]:
    """The given conditions, then those that the plan guides away from, each with how far.

    Raises:
        ValueError: text guidance without the empty prompt.
    """
    chosen = [(0.0, given)]
    if plan.cfg != 1:
        if given.null_prompt is None:
            raise ValueError("text guidance needs the empty prompt among the prompts")
        empty = torch.full_like(given.context_ids, given.null_prompt)
        chosen.append((plan.cfg - 1, replace(given, context_ids=empty)))
    if plan.sem_cfg != 1 and given.sem_ids is not None:
        unknown = torch.full_like(given.sem_ids, UNKNOWN)
        chosen.append((plan.sem_cfg - 1, replace(given, sem_ids=unknown)))
    return chosen


def guided(velocities: Sequence[tuple[float, Tensor]]) -> Tensor:
    """The velocity of the first of `branches`, moved away from the others' as far as they say."""
    full = result = velocities[0][1]
    for away, velocity in velocities[1:]:
        result = result + away * (full - velocity)
    return result


def _predict(model: VelocityModel, x: Tensor, timestep: Tensor, given: Conditions) -> Tensor:
    return model(x, timestep, *given.texts, given.sem_ids, **given.acted).prediction.float()
