"""dmd2 where all is known: Gaussian data, the exact score, a student that can represent it."""

import pytest
import torch
from torch import Tensor, nn

from gc25d.methods.distill import DistillConfig
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.roles import OptimizerConfig
from gc25d.model.interface import ModelOutput

STATS = {"x_rms": torch.zeros(()), "sem_rms": torch.zeros(())}


class Gaussian(nn.Module):
    """The exact velocity of data N(mean, spread²).

    x_t has mean (1 − σ)·mean and variance V = (1 − σ)²·spread² + σ²; given x_t, ε is expected at
    σ/V times its deviation and x0 at mean + (1 − σ)·spread²/V times it.
    """

    def __init__(self, mean: float, spread: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))
        self.spread = nn.Parameter(torch.tensor(spread))

    def forward(self, latents: Tensor, timestep: Tensor, *conditions: Tensor) -> ModelOutput:
        sigma = timestep[:, None, :, None, None] / 1000
        square = self.spread.square()
        variance = (1 - sigma) ** 2 * square + sigma**2
        deviation = (latents - (1 - sigma) * self.mean) / variance
        expected = sigma * deviation - self.mean - (1 - sigma) * square * deviation
        return ModelOutput(expected, STATS)


class Linear(nn.Module):
    """v = a·x + b: from ε the student makes (1 − a)·ε − b."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), nn.Parameter(torch.tensor(b))

    def forward(self, latents: Tensor, timestep: Tensor, *conditions: Tensor) -> ModelOutput:
        return ModelOutput(self.a * latents + self.b, STATS)


@pytest.mark.parametrize(("mean", "spread"), [(1.5, 0.5), (-1.0, 1.2)])
def test_the_student_ends_at_the_teachers_distribution(
    toy_batch, mean: float, spread: float
) -> None:
    rates = OptimizerConfig(lr=0.02, cond_lr=0.02, weight_decay=0.0, warmup_steps=0)
    student = Linear(0.0, 0.0)
    critic = Gaussian(0.0, 1.0)
    method = Dmd2Method(
        student,
        Gaussian(mean, spread),
        critic,
        seed=0,
        config=DistillConfig(1, 5.0, 2),
        optimizer=rates,
        critic_optimizer=rates,
    )
    for iteration in range(600):
        if iteration == 400:  # the last steps settle
            for role in method.trained.values():
                role.optimizer.param_groups[0]["initial_lr"] = 0.005
                role.scheduler.base_lrs = [0.005]
        batch = toy_batch(list(range(8)), epoch=iteration)
        method.optimizers_zero_grad(iteration)
        losses, outputs, _ = method.single_train_step(batch, iteration)
        method.backward(losses, outputs, 1)
        method.optimizers_schedulers_step(iteration)
    assert -student.b.item() == pytest.approx(mean, abs=0.1)
    assert abs(1 - student.a.item()) == pytest.approx(spread, abs=0.1)
    # The critic knows what the student makes.
    assert critic.mean.item() == pytest.approx(-student.b.item(), abs=0.1)
    assert abs(critic.spread.item()) == pytest.approx(abs(1 - student.a.item()), abs=0.1)
