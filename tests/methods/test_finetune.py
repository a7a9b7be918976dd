"""The finetune method against its formula written out by hand, on the real tiny model."""

import math

import pytest
import torch

from gc25d.dataset.batch import Batch
from gc25d.methods.base import TOTAL_LOSS
from gc25d.methods.finetune import FinetuneMethod
from gc25d.methods.roles import OptimizerConfig
from gc25d.model.zoo import build_model, wan_config

B, F, H, W = 3, 2, 4, 4


def batch(indices: list[int], epoch: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(7)
    n = len(indices)
    latents = torch.stack(
        [torch.randn(48, F, H, W, generator=torch.Generator().manual_seed(i)) for i in indices]
    )
    prompts = torch.zeros(2, 8, 16)
    prompts[1, :3] = torch.randn(3, 16, generator=generator)
    return Batch(
        latents=latents,
        prompts=prompts,
        prompt_lengths=torch.tensor([0, 3]),
        context_ids=torch.tensor([[0, 1]] * n),
        sem_ids=torch.stack([torch.full((5, 64, 64), i % 7, dtype=torch.uint8) for i in indices]),
        clip_ids=[f"clip{i}" for i in indices],
        epochs=[epoch] * n,
        indices=indices,
        dropped=[{"text": False, "cond": False, "mask": 0.0}] * n,
    )


def method(seed: int = 0) -> FinetuneMethod:
    torch.manual_seed(0)
    model = build_model(wan_config("tiny", "parts", 16), seed=1, zero_head=False)
    return FinetuneMethod(
        model, seed=seed, optimizer=OptimizerConfig(lr=1e-3, cond_lr=2e-3, warmup_steps=4)
    )


def gradients(of: FinetuneMethod) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in of.model.parameters() if p.grad is not None])


def test_loss_is_the_formula() -> None:
    subject, samples = method(), batch([4, 9])
    index, noise = subject.draw(samples)
    loss_map, _, metrics = subject.single_train_step(samples, 0)
    losses, errors = [], []
    for i in range(2):
        t = subject.grid[index[i]].item()
        sigma = t / 1000
        inputs = (1 - sigma) * samples.latents[i] + sigma * noise[i]
        inputs[:, 0] = samples.latents[i][:, 0]
        prediction = subject.model(
            inputs[None],
            torch.tensor([[0.0, t]]),
            samples.prompts,
            samples.prompt_lengths,
            samples.context_ids[i : i + 1],
            samples.sem_ids[i : i + 1],
        ).prediction[0]
        residual = (prediction - (noise[i] - samples.latents[i]))[:, 1:]
        errors.append(residual.square().mean().item())
        bell = math.exp(-2 * ((t - 500) / 1000) ** 2)
        all_bells = torch.exp(-2 * ((subject.grid.double() - 500) / 1000) ** 2)
        weight = (bell - all_bells.min().item()) / (all_bells - all_bells.min()).mean().item()
        losses.append(weight * errors[-1])
    assert loss_map[TOTAL_LOSS].item() == pytest.approx(sum(losses) / 2, rel=1e-5)
    assert metrics["mse"].item() == pytest.approx(sum(errors) / 2, rel=1e-5)


def test_draws_belong_to_the_sample_not_to_its_batch() -> None:
    together, alone = method().draw(batch([4, 9, 2])), method().draw(batch([9]))
    assert torch.equal(together[0][1], alone[0][0])
    assert torch.equal(together[1][1], alone[1][0])
    other_epoch, other_seed = method().draw(batch([9], epoch=1)), method(seed=5).draw(batch([9]))
    assert not torch.equal(alone[1], other_epoch[1])
    assert not torch.equal(alone[1], other_seed[1])


def test_timesteps_cover_the_grid_evenly() -> None:
    index, _ = method().draw(batch(list(range(300))))
    # Uniform over 1000 points: mean 499.5, standard error 288.7/√300 = 16.7; 4 of them.
    assert abs(index.float().mean().item() - 499.5) < 67
    assert index.min() < 50
    assert index.max() > 950


def test_micro_batches_weigh_as_their_samples() -> None:
    whole = method()
    loss_map, outputs, _ = whole.single_train_step(batch([1, 2, 3]), 0)
    whole.backward(loss_map, outputs, 1)
    parts = method()
    for indices in ([1, 2], [3]):
        loss_map, outputs, _ = parts.single_train_step(batch(indices), 0)
        parts.backward(loss_map, outputs, 3 / len(indices))
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=1e-4, atol=1e-6)


def test_rates_and_groups() -> None:
    subject = method()
    base, condition = subject.optimizer.param_groups
    assert (base["name"], condition["name"]) == ("dit", "gc_sem_cond")
    assert len(condition["params"]) == 6
    assert [base["lr"], condition["lr"]] == pytest.approx([1e-3 / 4, 2e-3 / 4])
    rates = []
    for step in range(6):
        rates.append(base["lr"])
        loss_map, outputs, _ = subject.single_train_step(batch([step]), step)
        subject.optimizers_zero_grad(step)
        subject.backward(loss_map, outputs, 1)
        subject.optimizers_schedulers_step(step)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])
    resumed = method()
    resumed.resume_schedules(2)
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(rates[2])
