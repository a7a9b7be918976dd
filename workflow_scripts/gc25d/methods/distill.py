"""Distribution matching distillation: what `dmd2` and `self_forcing` have in common.

Sources: Yin et al., "One-step Diffusion with Distribution Matching Distillation" (DMD,
arXiv:2311.18828), eqs. 7 and 8 for the gradient and its normalisation; "Improved Distribution
Matching Distillation" (DMD2, arXiv:2405.14867) for the critic's more frequent updates and the
simulated few-step student.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.methods.base import LossMap, Metrics, Outputs, TrainingMethod
from gc25d.methods.roles import (
    CRITIC,
    STUDENT,
    TEACHER,
    OptimizerConfig,
    Role,
    frozen_role,
    trainable_role,
)
from gc25d.sampling import flow
from gc25d.sampling.guidance import Guidance, guided_velocity
from gc25d.sampling.predict import predict

GENERATOR_LOSS, CRITIC_LOSS = "generator_loss", "critic_loss"
SCORE_RANGE = (0.02, 0.98)
"""Part of the training grid in which scores are compared: at its ends they are not informative."""
_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class DistillConfig:
    """How a few-step student samples, and how often it learns."""

    denoising_steps: int = 4
    """Forward passes of the student from noise to a clip, K."""
    shift: float = 5.0
    """Shift of the student's noise levels."""
    generator_update_interval: int = 5
    """The student learns at every so many iterations, the critic at each."""
    guidance: Guidance = field(default_factory=Guidance)
    """Of the teacher."""


@dataclass(frozen=True)
class Rollout:
    """What the student made of a batch."""

    clean: Tensor
    """x0, float32 [B, C, F, h, w]; frame 0 is the given one."""
    stats: Mapping[str, Tensor]


class DistillMethod(TrainingMethod):
    """A student that matches the teacher's distribution, told where it is off by a critic.

    The critic ("fake score") models what the student makes now; where its denoised estimate and
    the teacher's disagree, the student is moved.
    """

    loss_roles: ClassVar[Mapping[str, str]] = {GENERATOR_LOSS: STUDENT, CRITIC_LOSS: CRITIC}

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        critic: nn.Module,
        *,
        seed: int,
        config: DistillConfig | None = None,
        optimizer: OptimizerConfig | None = None,
        critic_optimizer: OptimizerConfig | None = None,
        base_paths: tuple[str, str] = ("", ""),
    ) -> None:
        """Take the three networks, none of which shares parameters with another.

        Args:
            student: trained to sample in few steps.
            teacher: frozen.
            critic: trained; starts from the teacher's weights.
            seed: of every draw.
            config: sampling and cadence.
            optimizer: the student's.
            critic_optimizer: the critic's.
            base_paths: where the student's and the teacher's (and critic's) weights came from.
        """
        roles: dict[str, Role] = {
            STUDENT: trainable_role(student, optimizer or OptimizerConfig(), base_paths[0]),
            TEACHER: frozen_role(teacher, base_paths[1]),
            CRITIC: trainable_role(critic, critic_optimizer or OptimizerConfig(), base_paths[1]),
        }
        super().__init__(seed, roles)
        self.config = config or DistillConfig()
        self.grid = flow.training_grid()
        sigmas = flow.shifted_sigmas(self.config.denoising_steps, self.config.shift)
        self.denoising_timesteps = sigmas * flow.TIMESTEPS_PER_SIGMA

    def stepping_roles(self, iteration: int) -> tuple[str, ...]:
        """The critic always, the student at every `generator_update_interval`th iteration."""
        learns = iteration % self.config.generator_update_interval == 0
        return (STUDENT, CRITIC) if learns else (CRITIC,)

    def updates_before(self, role: str, step: int) -> int:
        """The student's updates are rarer than the iterations."""
        return -(-step // self.config.generator_update_interval) if role == STUDENT else step

    @abstractmethod
    def roll_out(self, batch: Batch, iteration: int) -> Rollout:
        """Sample a clip for each sample of the batch, differentiable if gradients are enabled."""

    def single_train_step(self, batch: Batch, iteration: int) -> tuple[LossMap, Outputs, Metrics]:
        """Roll the student out; its loss at its iterations, the critic's at all."""
        learns = STUDENT in self.stepping_roles(iteration)
        with torch.set_grad_enabled(learns):
            made = self.roll_out(batch, iteration)
        losses = {GENERATOR_LOSS: self.generator_loss(made.clean, batch)} if learns else {}
        losses[CRITIC_LOSS], timestep = self.critic_loss(made.clean.detach(), batch)
        values = {name: loss.detach().float() for name, loss in losses.items()}
        metrics = {
            **values,
            "loss": torch.stack([*values.values()]).sum(),
            "mse": values[CRITIC_LOSS],
            "timestep": timestep,
            **made.stats,
        }
        return losses, {"samples": made.clean.detach()}, metrics

    def generator_loss(self, made: Tensor, batch: Batch) -> Tensor:
        """0.5·MSE(x0, sg(x0 − grad)) over frames f ≥ 1: its gradient is `grad` over their number.

        Both estimates are of one noised x0. In float64, as x0 − (x0 − grad) would cancel in
        float32.
        """
        index, noise = self.draw_score("distill generator", batch)
        timestep = self.grid[index].to(made.device, non_blocking=True)
        noisy, per_frame = self._noised(made.detach(), noise, timestep)
        across = per_frame[:, None, :, None, None]
        with torch.no_grad():
            fake = predict(self.roles[CRITIC], noisy, per_frame, batch).prediction
            real = guided_velocity(
                self.roles[TEACHER], noisy, per_frame, batch, self.config.guidance
            )
            gradient = dmd_gradient(
                made.detach(),
                flow.clean_estimate(noisy, fake, across),
                flow.clean_estimate(noisy, real, across),
            )
        sample = made[:, :, 1:].double()
        target = (sample - gradient[:, :, 1:]).detach()
        return 0.5 * (sample - target).square().mean()

    def critic_loss(self, made: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Flow matching on the student's clips: mean((v̂ − (ε − x0))²) over frames f ≥ 1.

        Returns:
            The loss and the mean timestep.
        """
        index, noise = self.draw_score("distill critic", batch)
        timestep = self.grid[index].to(made.device, non_blocking=True)
        noisy, per_frame = self._noised(made, noise, timestep)
        output = predict(self.roles[CRITIC], noisy, per_frame, batch)
        error = flow.squared_error(output.prediction, flow.velocity(made, noise))
        return error.mean(), timestep.mean()

    def draw_score(self, purpose: str, batch: Batch) -> tuple[Tensor, Tensor]:
        """Grid index [B] within `SCORE_RANGE` and noise (as the latents) of each sample."""
        low, high = (round(part * flow.GRID_POINTS) for part in SCORE_RANGE)
        indices, noises = [], []
        for epoch, index in zip(batch.epochs, batch.indices, strict=True):
            generator = self.sample_generator(purpose, epoch, index)
            indices.append(torch.randint(low, high, (), generator=generator))
            noises.append(torch.randn(batch.latents.shape[1:], generator=generator))
        return torch.stack(indices), torch.stack(noises).to(batch.latents.device)

    def draw_noises(self, batch: Batch) -> Tensor:
        """The roll-out's noise, one for each denoising step: float32 [K, B, C, F, h, w]."""
        shape = (self.config.denoising_steps, *batch.latents.shape[1:])
        noises = [
            torch.randn(shape, generator=self.sample_generator("roll-out", epoch, index))
            for epoch, index in zip(batch.epochs, batch.indices, strict=True)
        ]
        return torch.stack(noises, dim=1).to(batch.latents.device)

    def draw_exits(self, iteration: int, count: int) -> list[int]:
        """At which denoising step each of `count` roll-outs ends; all ranks and samples agree."""
        generator = self.step_generator("exit", iteration)
        drawn = torch.randint(self.config.denoising_steps, (count,), generator=generator)
        return [int(step) for step in drawn]

    def _noised(self, clean: Tensor, noise: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        noisy = flow.add_noise(clean, noise, timestep[:, None, None, None, None])
        return flow.condition_first_frame(noisy, clean, timestep)


def dmd_gradient(made: Tensor, fake: Tensor, real: Tensor) -> Tensor:
    """(x̂0_fake − x̂0_real) / mean|x0 − x̂0_real|, the mean over a sample's frames f ≥ 1.

    DMD, eqs. 7 and 8: the difference of the denoised estimates is that of the scores up to a
    factor, and the mean makes noise levels weigh alike.
    """
    scale = (made - real)[:, :, 1:].abs().mean((1, 2, 3, 4), keepdim=True)
    return (fake - real) / scale.clamp_min(_SMALLEST_SCALE)
