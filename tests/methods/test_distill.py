"""Distribution matching against its formulas written out for linear networks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gc25d.methods.distill import CRITIC_LOSS, GENERATOR_LOSS, DistillConfig, dmd_gradient
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.sampling import flow
from gc25d.sampling.guidance import Guidance, NullPrompt, guided_velocity

STUDENT, TEACHER, CRITIC = 0.3, 0.7, 0.5  # coefficients: v = a·x
NULL = NullPrompt(torch.tensor([[8.0, 8.0]]), 1)


@pytest.fixture
def method(toy):
    def build(steps: int = 1, interval: int = 2, guidance: Guidance | None = None, seed: int = 0):
        config = DistillConfig(steps, 5.0, interval, guidance or Guidance())
        return Dmd2Method(toy(STUDENT), toy(TEACHER), toy(CRITIC), seed=seed, config=config)

    return build


def noised(x0: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
    """(1 − σ)·x0 + σ·ε in float64, the first frame left clean."""
    sigma = sigma.double().reshape(-1, 1, 1, 1, 1)
    x = (1 - sigma) * x0.double() + sigma * noise.double()
    x[:, :, 0] = x0[:, :, 0]
    return x


def test_gradient_of_two_estimates_by_hand() -> None:
    made = torch.tensor([100.0, 2.0, 4.0]).reshape(1, 1, 3, 1, 1)
    real = torch.tensor([-50.0, 1.0, 1.0]).reshape(1, 1, 3, 1, 1)
    fake = torch.tensor([7.0, 3.0, 0.0]).reshape(1, 1, 3, 1, 1)
    # Frames 1 and 2: mean|x0 − real| = (1 + 3)/2 = 2; fake − real = 2, −1.
    assert dmd_gradient(made, fake, real)[0, 0, 1:].flatten().tolist() == [1.0, -0.5]
    assert not dmd_gradient(made, real, real)[:, :, 1:].any()


def test_one_step_student_by_hand(method, toy_batch) -> None:
    """x0 = (1 − a)·ε; both losses and the gradients of a, from the formulas in float64."""
    subject, batch = method(), toy_batch([4, 9])
    losses, outputs, _ = subject.single_train_step(batch, 0)
    subject.backward(losses, outputs, 1)

    start = subject.draw_noises(batch)[0].double()
    made = (1 - STUDENT) * start
    made[:, :, 0] = batch.latents[:, :, 0]
    torch.testing.assert_close(outputs["samples"].double(), made, rtol=1e-5, atol=1e-6)

    index, noise = subject.draw_score("distill generator", batch)
    sigma = subject.grid[index].double() / 1000
    x = noised(made, noise, sigma)[:, :, 1:]
    across = sigma.reshape(-1, 1, 1, 1, 1)
    fake, real = (1 - across * CRITIC) * x, (1 - across * TEACHER) * x
    scale = (made[:, :, 1:] - real).abs().flatten(1).mean(1).reshape(-1, 1, 1, 1, 1)
    gradient = (fake - real) / scale
    assert losses[GENERATOR_LOSS].item() == pytest.approx(
        0.5 * gradient.square().mean().item(), rel=1e-5
    )
    # dx0/da = −ε, and the loss's gradient at x0 is `gradient` over the number of its values.
    assert subject.roles["student"].a.grad.item() == pytest.approx(
        (gradient * -start[:, :, 1:]).mean().item(), rel=1e-5
    )

    index, noise = subject.draw_score("distill critic", batch)
    x = noised(made, noise, subject.grid[index] / 1000)[:, :, 1:]
    error = CRITIC * x - (noise.double() - made)[:, :, 1:]
    assert losses[CRITIC_LOSS].item() == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert subject.roles["critic"].a.grad.item() == pytest.approx(
        (2 * error * x).mean().item(), rel=1e-5
    )
    assert subject.roles["teacher"].a.grad is None


@pytest.mark.parametrize("loss", [GENERATOR_LOSS, CRITIC_LOSS])
def test_each_loss_reaches_its_own_role_alone(method, toy_batch, loss: str) -> None:
    subject = method(steps=3)
    losses, outputs, _ = subject.single_train_step(toy_batch([1]), 0)
    subject.backward({loss: losses[loss]}, outputs, 1)
    touched = [name for name, model in subject.roles.items() if model.a.grad is not None]
    assert touched == [subject.loss_roles[loss]]


def test_the_last_pass_of_a_simulated_roll_out_carries_the_gradient(method, toy_batch) -> None:
    subject, batch = method(steps=3), toy_batch([5])
    iteration = next(i for i in range(0, 50, 2) if subject.draw_exits(i, 1) == [1])
    _, outputs, _ = subject.single_train_step(batch, iteration)
    # σ = 1, then 5·⅔ / (1 + 4·⅔) = 10/11: the estimate (1 − a)·ε_0 is noised again and denoised.
    sigma = 10 / 11
    first, second = subject.draw_noises(batch)[:2].double()
    x1 = (1 - sigma) * (1 - STUDENT) * first + sigma * second
    made = (1 - sigma * STUDENT) * x1
    torch.testing.assert_close(
        outputs["samples"][:, :, 1:].double(), made[:, :, 1:], rtol=1e-5, atol=1e-6
    )
    calls = subject.roles["student"].calls
    assert [enabled for _, _, enabled in calls] == [False, True]
    assert [timestep[0].tolist() for _, timestep, _ in calls] == [
        pytest.approx([0, 1000, 1000]),
        pytest.approx([0, 1000 * sigma, 1000 * sigma]),
    ]
    assert all(torch.equal(seen[:, :, 0], batch.latents[:, :, 0]) for seen, _, _ in calls)


def test_the_critic_learns_always_the_student_now_and_then(method, toy_batch) -> None:
    subject, batch = method(interval=3), toy_batch([2])
    student, critic = subject.roles["student"].a, subject.roles["critic"].a
    moved = []
    for iteration in range(7):
        before = student.item(), critic.item()
        subject.optimizers_zero_grad(iteration)
        losses, outputs, metrics = subject.single_train_step(batch, iteration)
        subject.backward(losses, outputs, 1)
        subject.optimizers_schedulers_step(iteration)
        moved.append((student.item() != before[0], critic.item() != before[1]))
        assert set(losses) == {CRITIC_LOSS} | ({GENERATOR_LOSS} if iteration % 3 == 0 else set())
        assert metrics["loss"].item() == pytest.approx(
            sum(loss.item() for loss in losses.values()), rel=1e-6
        )
    assert moved == [(iteration % 3 == 0, True) for iteration in range(7)]
    for steps, updates in ((0, 0), (1, 1), (3, 1), (4, 2), (7, 3)):
        assert subject.updates_before("student", steps) == updates
        assert subject.updates_before("critic", steps) == steps
    assert subject.roles["teacher"].a.item() == pytest.approx(TEACHER)
    assert not any(enabled for _, _, enabled in subject.roles["teacher"].calls)


def test_draws_belong_to_samples_exits_to_the_step(method, toy_batch) -> None:
    subject, other = method(steps=4), method(steps=4)
    together, alone = subject.draw_noises(toy_batch([4, 9])), other.draw_noises(toy_batch([9]))
    assert torch.equal(together[:, 1], alone[:, 0])
    assert not torch.equal(alone, other.draw_noises(toy_batch([9], epoch=1)))
    index, noise = subject.draw_score("distill critic", toy_batch([4, 9]))
    alone_index, alone_noise = other.draw_score("distill critic", toy_batch([9]))
    assert index[1] == alone_index[0]
    assert torch.equal(noise[1], alone_noise[0])
    assert not torch.equal(noise, subject.draw_score("distill generator", toy_batch([4, 9]))[1])
    exits = [subject.draw_exits(step, 2) for step in range(40)]
    assert exits == [other.draw_exits(step, 2) for step in range(40)]
    assert {leave for drawn in exits for leave in drawn} == {0, 1, 2, 3}
    index, _ = subject.draw_score("distill critic", toy_batch(list(range(400))))
    assert 20 <= index.min() < 40
    assert 960 <= index.max() < 980


def test_guidance_by_hand(toy, toy_batch) -> None:
    model, batch = toy(0.5, b=1.0, c=10.0), toy_batch([1])
    x, timestep = torch.ones(1, 2, 3, 2, 2), torch.full((1, 3), 500.0)
    # Frames read prompts of mean 3, 3, 0; the empty prompt's mean is 8; unknown ids add 10.
    full = torch.tensor([3.5, 3.5, 0.5])
    expected = full + 0.5 * (full - 8.5) + 2.0 * -10.0
    guided = guided_velocity(model, x, timestep, batch, Guidance(1.5, 3.0, NULL))
    torch.testing.assert_close(guided[0, 0, :, 0, 0], expected)
    assert len(model.calls) == 3
    plain = guided_velocity(model, x, timestep, batch, Guidance())
    torch.testing.assert_close(plain[0, 0, :, 0, 0], full)
    assert len(model.calls) == 4
    with pytest.raises(ValueError, match="needs the empty prompt"):
        guided_velocity(model, x, timestep, batch, Guidance(cfg=2.0))


def test_the_teacher_is_guided_and_the_critic_is_not(toy, toy_batch) -> None:
    teacher, critic = toy(TEACHER, c=0.2), toy(CRITIC, c=0.2)
    config = DistillConfig(1, 5.0, 1, Guidance(sem_cfg=2.0))
    subject = Dmd2Method(toy(STUDENT), teacher, critic, seed=0, config=config)
    batch = toy_batch([3])
    made = torch.ones(1, 2, 3, 2, 2)
    loss = subject.generator_loss(made, batch)
    index, noise = subject.draw_score("distill generator", batch)
    sigma = subject.grid[index].double() / 1000
    x = noised(made, noise, sigma)[:, :, 1:]
    real = x - sigma * (TEACHER * x - 0.2)  # v + (2 − 1)·(v − (v + 0.2))
    fake = x - sigma * CRITIC * x
    gradient = (fake - real) / (1 - real).abs().mean()
    assert loss.item() == pytest.approx(0.5 * gradient.square().mean().item(), rel=1e-5)
    dropped = replace(batch, sem_ids=torch.full_like(batch.sem_ids, 255))
    assert subject.generator_loss(made, dropped).item() != pytest.approx(loss.item(), rel=1e-3)


def test_clean_estimate_undoes_noising() -> None:
    clean, noise, timestep = torch.randn(3, 4), torch.randn(3, 4), torch.tensor(730.0)
    noisy = flow.add_noise(clean, noise, timestep)
    estimate = flow.clean_estimate(noisy, flow.velocity(clean, noise), timestep)
    torch.testing.assert_close(estimate, clean, rtol=1e-5, atol=1e-6)
