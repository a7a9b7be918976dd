import dataclasses
import hashlib
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gc25d.model.zoo import build_model, wan_config
from gc25d.sampling.sample import Conditions, Plan, sample, starting_noise

SHAPE = (48, 3, 4, 4)
B = 2


def conditions(sem: bool = True, seed: int = 0) -> Conditions:
    g = torch.Generator().manual_seed(seed)
    return Conditions(
        first=torch.randn(B, 48, 1, 4, 4, generator=g),
        prompts=torch.randn(3, 8, 16, generator=g),
        prompt_lengths=torch.tensor([8, 8, 8]),
        context_ids=torch.tensor([[0, 1, 0], [1, 1, 0]]),
        null_prompt=2,
        sem_ids=torch.randint(0, 7, (B, 9, 64, 64), generator=g).to(torch.uint8) if sem else None,
    )


def noise() -> torch.Tensor:
    return starting_noise(0, ["a", "b"], SHAPE)


class Recorder:
    """A model given by its velocity; keeps what it was called with."""

    def __init__(self, velocity) -> None:
        self.velocity = velocity
        self.calls: list[SimpleNamespace] = []

    def __call__(self, latents, timestep, prompts, prompt_lengths, context_ids, sem_ids):
        call = SimpleNamespace(
            latents=latents.clone(), timestep=timestep, context_ids=context_ids, sem_ids=sem_ids
        )
        self.calls.append(call)
        return SimpleNamespace(prediction=self.velocity(call))


def sigma_of(call) -> torch.Tensor:
    return call.timestep[:, 1, None, None, None, None] / 1000


@pytest.mark.parametrize(("steps", "shift"), [(1, 1.0), (3, 5.0), (50, 5.0)])
def test_a_straight_path_ends_in_its_target(steps, shift):
    # Data that is one point x0: v = (x − x0)/σ, every path is straight, Euler is exact.
    target = torch.randn(B, *SHAPE, generator=torch.Generator().manual_seed(7))
    model = Recorder(lambda call: (call.latents - target) / sigma_of(call))
    given = conditions()
    found = sample(model, given, noise(), Plan(steps, shift))
    assert len(model.calls) == steps
    torch.testing.assert_close(found[:, :, 1:], target[:, :, 1:], atol=1e-5, rtol=0)
    assert torch.equal(found[:, :, :1], given.first)


def gaussian_velocity(mean: float, std: float):
    """E[ε − x0 | x_σ] for x0 ~ N(mean, std²), from the Gaussian conditional."""

    def velocity(call):
        s = sigma_of(call)
        variance = (1 - s) ** 2 * std**2 + s**2
        residual = call.latents - (1 - s) * mean
        return (s - (1 - s) * std**2) / variance * residual - mean

    return velocity


def test_euler_converges_to_the_flow_of_gaussian_data():
    # The exact flow maps ε at σ = 1 to mean + std·ε at σ = 0.
    start = noise()
    exact = 2.0 + 0.5 * start[:, :, 1:]
    errors = []
    for steps in (25, 50, 100, 200):
        model = Recorder(gaussian_velocity(2.0, 0.5))
        found = sample(model, conditions(), start, Plan(steps, 5.0))[:, :, 1:]
        errors.append(float((found - exact).abs().mean()))
    ratios = [a / b for a, b in pairwise(errors)]
    assert errors[-1] < 0.01
    assert ratios == pytest.approx([2, 2, 2], rel=0.1)  # first order


def test_frame_zero_is_clean_and_at_timestep_zero_in_every_call():
    given = conditions()
    model = Recorder(lambda call: torch.full_like(call.latents, 3.0))
    found = sample(model, given, noise(), Plan(4, 5.0))
    uniform = np.array([1, 0.75, 0.5, 0.25])
    expected = 1000 * 5 * uniform / (1 + 4 * uniform)
    for call, timestep in zip(model.calls, expected, strict=True):
        assert torch.equal(call.latents[:, :, :1], given.first)
        assert call.timestep.dtype == torch.float32
        assert call.timestep.shape == (B, 3)
        assert (call.timestep[:, 0] == 0).all()
        np.testing.assert_allclose(call.timestep[:, 1:], timestep, rtol=1e-6)
    # A constant velocity over σ from 1 to 0 subtracts itself once.
    torch.testing.assert_close(found[:, :, 1:], noise()[:, :, 1:] - 3.0, atol=1e-5, rtol=0)


def test_the_first_call_sees_the_noise_itself():
    model = Recorder(lambda call: torch.zeros_like(call.latents))
    found = sample(model, conditions(), noise(), Plan(2, 5.0))
    assert torch.equal(model.calls[0].latents[:, :, 1:], noise()[:, :, 1:])
    assert torch.equal(found[:, :, 1:], noise()[:, :, 1:])


def kind(call, given: Conditions) -> str:
    if (call.context_ids == given.null_prompt).all():
        return "nulltext"
    return "unknown" if bool((call.sem_ids == 255).all()) else "full"


@pytest.mark.parametrize(
    ("cfg", "sem_cfg", "calls", "velocity"),
    [
        (1.0, 1.0, ["full"], 1.0),
        (3.0, 1.0, ["full", "nulltext"], 1 + 2 * (1 - 10)),
        (1.0, 2.0, ["full", "unknown"], 1 + 1 * (1 - 100)),
        (3.0, 2.0, ["full", "nulltext", "unknown"], 1 + 2 * (1 - 10) + 1 * (1 - 100)),
        (0.0, 1.0, ["full", "nulltext"], 10.0),  # the empty prompt alone
        (1.0, 0.0, ["full", "unknown"], 100.0),  # the unknown map alone
    ],
)
def test_guidance(cfg, sem_cfg, calls, velocity):
    given = conditions()
    value = {"full": 1.0, "nulltext": 10.0, "unknown": 100.0}
    model = Recorder(lambda call: torch.full_like(call.latents, value[kind(call, given)]))
    found = sample(model, given, noise(), Plan(1, 1.0, cfg=cfg, sem_cfg=sem_cfg))
    assert [kind(call, given) for call in model.calls] == calls
    expected = noise()[:, :, 1:] - velocity
    torch.testing.assert_close(found[:, :, 1:], expected, atol=1e-4, rtol=0)


def test_guidance_without_its_means():
    model = Recorder(lambda call: torch.zeros_like(call.latents))
    without = dataclasses.replace(conditions(), null_prompt=None)
    with pytest.raises(ValueError, match="empty prompt"):
        sample(model, without, noise(), Plan(1, 1.0, cfg=2.0))
    model.calls.clear()
    sample(model, conditions(sem=False), noise(), Plan(1, 1.0, sem_cfg=2.0))
    assert len(model.calls) == 1


def test_noise_depends_on_seed_and_clip_alone():
    both = starting_noise(3, ["a", "b"], SHAPE)
    assert torch.equal(both.flip(0), starting_noise(3, ["b", "a"], SHAPE))
    assert torch.equal(both[:1], starting_noise(3, ["a"], SHAPE))
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both, starting_noise(4, ["a", "b"], SHAPE))
    assert both.dtype == torch.float32
    assert abs(float(both.mean())) < 0.03
    assert float(both.std()) == pytest.approx(1, abs=0.03)


def test_noise_is_the_documented_stream(drawn_by_hand):
    """Named by the first 32 bits of the clip id's SHA-256."""
    for clip_id in ("a", "castle__run-000__000081"):
        number = int.from_bytes(hashlib.sha256(clip_id.encode()).digest()[:4], "big")
        expected = torch.randn(SHAPE, generator=drawn_by_hand(3, "sample", number))
        assert torch.equal(starting_noise(3, [clip_id], SHAPE)[0], expected)


def test_a_batch_equals_its_clips_one_by_one():
    model = build_model(wan_config("tiny", "parts", text_dim=16), 0, zero_head=False)
    given, start, plan = conditions(), noise(), Plan(3, 5.0, cfg=2.0, sem_cfg=2.0)
    together = sample(model, given, start, plan)
    for b in range(B):
        one = dataclasses.replace(
            given,
            first=given.first[b : b + 1],
            context_ids=given.context_ids[b : b + 1],
            sem_ids=given.sem_ids[b : b + 1],
        )
        alone = sample(model, one, start[b : b + 1], plan)
        torch.testing.assert_close(alone, together[b : b + 1], atol=2e-4, rtol=1e-4)
    assert torch.equal(sample(model, given, start, plan), together)
    assert together.is_inference()


def test_a_low_precision_model_keeps_latents_in_float32():
    model = build_model(wan_config("tiny", "parts", text_dim=16), 0, zero_head=False)
    plan = Plan(4, 5.0)
    exact = sample(model, conditions(), noise(), plan)
    rough = sample(model.to(torch.bfloat16), conditions(), noise(), plan)
    assert rough.dtype == torch.float32
    assert torch.equal(rough[:, :, :1], conditions().first)
    assert 0 < float((rough - exact).abs().mean()) < 0.05 * float(exact.std())


def test_progress_counts_steps():
    done: list[int] = []
    model = Recorder(lambda call: torch.zeros_like(call.latents))
    sample(model, conditions(), noise(), Plan(3, 5.0), progress=done.append)
    assert done == [1, 2, 3]
