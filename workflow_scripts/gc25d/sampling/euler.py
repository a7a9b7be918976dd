"""The teacher's path from noise to a clip: its probability-flow ODE, solved by Euler's method.

With v = ε − x0 the ODE is dx/dσ = v(x, σ); a step from σ to σ' is x ← x + (σ' − σ)·v, as in
evaluation. A student of K steps regresses the points at its own noise levels (CausVid,
arXiv:2412.07772, section 4.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.dataset.draws import torch_seed
from gc25d.sampling.flow import TIMESTEPS_PER_SIGMA, shifted_sigmas
from gc25d.sampling.guidance import Guidance, guided_velocity


@dataclass(frozen=True)
class OdePlan:
    """How paths are made and which of their points are kept."""

    teacher_steps: int
    """N, a multiple of `denoising_steps`."""
    denoising_steps: int
    """K: the noise levels of the student."""
    shift: float

    @property
    def sigmas(self) -> list[float]:
        """Noise levels of the solver, N + 1 with the final 0; every N/K-th is the student's."""
        return [*shifted_sigmas(self.teacher_steps, self.shift).tolist(), 0.0]

    @property
    def student_timesteps(self) -> Tensor:
        """Timesteps of the kept points but the last, float32 [K]."""
        kept = self.sigmas[: -1 : self.teacher_steps // self.denoising_steps]
        return torch.tensor(kept) * TIMESTEPS_PER_SIGMA


@torch.no_grad()
def solve(
    teacher: nn.Module, batch: Batch, noise: Tensor, plan: OdePlan, guidance: Guidance
) -> Tensor:
    """Follow the paths of a batch; its own clean first frames are given.

    Args:
        teacher: predicts ε − x0; frame 0 has timestep 0 in every call.
        batch: clips with their conditions, on the teacher's device.
        noise: float32 [B, C, F, h, w] there; frame 0 is not used.
        plan: steps and kept points.
        guidance: of the teacher.

    Returns:
        float32 [B, K + 1, C, F, h, w]: the points at the student's noise levels, then the clip.
    """
    given = batch.latents[:, :, :1].float()
    every = plan.teacher_steps // plan.denoising_steps
    x = torch.cat([given, noise[:, :, 1:].float()], dim=2)
    points = [x]
    sigmas = plan.sigmas
    for step in range(plan.teacher_steps):
        timestep = x.new_full((x.shape[0], x.shape[2]), sigmas[step] * TIMESTEPS_PER_SIGMA)
        timestep[:, 0] = 0
        v = guided_velocity(teacher, x, timestep, batch, guidance)
        x = torch.cat([given, (x + (sigmas[step + 1] - sigmas[step]) * v)[:, :, 1:]], dim=2)
        if (step + 1) % every == 0:
            points.append(x)
    return torch.stack(points, dim=1)


def path_noise(seed: int, indices: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Noise of each clip's path, float32 [B, *shape], from (seed, index) alone."""
    generator = torch.Generator()
    drawn = []
    for index in indices:
        generator.manual_seed(torch_seed(seed, "ode path", index))
        drawn.append(torch.randn(tuple(shape), generator=generator))
    return torch.stack(drawn)
