from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

from gc25d.dataset.actions import Actions
from gc25d.model.config import MatrixGameConfig, WanConfig
from gc25d.model.wan.causal import CausalWanModel
from gc25d.model.zoo import build_model
from gc25d.sampling.rollout import roll_out, rollout_steps
from gc25d.sampling.sample import Conditions, Plan, sample, starting_noise

CONFIG = WanConfig(48, 80, 2, 2, text_dim=20, vocab="parts", cond_dim=16, freq_dim=32)
B, FRAMES, NULL = 2, 5, 2
PLAIN, GUIDED = Plan(3, 5.0), Plan(2, 5.0, cfg=2.5, sem_cfg=1.5)


def moved_off(model):
    """The model with none of its parameters at a neutral value."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


@pytest.fixture(scope="module")
def wan():
    return moved_off(build_model(CONFIG, seed=1, zero_head=False))


@pytest.fixture
def causal(wan):
    def build(chunk_frames):
        model = CausalWanModel(CONFIG, chunk_frames)
        model.load_state_dict(wan.state_dict())
        return model

    return build


@pytest.fixture(scope="module")
def given():
    g = torch.Generator().manual_seed(0)
    return Conditions(
        first=torch.randn(B, 48, 1, 4, 4, generator=g),
        prompts=torch.randn(3, 8, 20, generator=g),
        prompt_lengths=torch.tensor([8, 8, 8]),
        context_ids=torch.tensor([[0, 1, 0, 0, 1], [1, 1, 0, 1, 0]]),
        null_prompt=NULL,
        sem_ids=torch.randint(0, 7, (B, 17, 64, 64), generator=g).to(torch.uint8),
    )


def noise():
    return starting_noise(0, ["a", "b"], (48, FRAMES, 4, 4))


def slow_reference(model, given, start, plan):
    """Every step computes the whole causal forward pass of all frames so far, without a cache."""
    uniform = [1 - i / plan.steps for i in range(plan.steps)]
    sigmas = [plan.shift * u / (1 + (plan.shift - 1) * u) for u in uniform] + [0.0]
    x = start.clone()
    x[:, :, :1] = given.first
    null = torch.full_like(given.context_ids, NULL)
    unknown = torch.full_like(given.sem_ids, 255)

    def velocity(sigma, begin, end, context_ids, sem_ids):
        timestep = torch.zeros(B, end)
        timestep[:, max(begin, 1) :] = 1000 * sigma
        text = (given.prompts, given.prompt_lengths, context_ids[:, :end])
        shown = sem_ids[:, : 4 * end - 3]
        output = model(x[:, :, :end], timestep, *text, shown, **given.acted)
        return output.prediction[:, :, begin:]

    for begin in range(0, FRAMES, model.chunk_frames):
        end = min(begin + model.chunk_frames, FRAMES)
        for sigma, following in pairwise(sigmas):
            full = velocity(sigma, begin, end, given.context_ids, given.sem_ids)
            no_text = velocity(sigma, begin, end, null, given.sem_ids)
            no_ids = velocity(sigma, begin, end, given.context_ids, unknown)
            v = full + (plan.cfg - 1) * (full - no_text) + (plan.sem_cfg - 1) * (full - no_ids)
            x[:, :, begin:end] += (following - sigma) * v
            x[:, :, :1] = given.first
    return x


@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
@pytest.mark.parametrize("plan", [PLAIN, GUIDED])
@torch.no_grad()
def test_a_rollout_is_the_full_causal_forward_at_every_step(causal, given, chunk_frames, plan):
    model = causal(chunk_frames)
    found = roll_out(model, given, noise(), plan)
    expected = slow_reference(model, given, noise(), plan)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)
    assert torch.equal(found[:, :, :1], given.first)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("plan", [PLAIN, GUIDED])
def test_one_chunk_is_the_bidirectional_sampler(wan, causal, given, plan):
    found = roll_out(causal(FRAMES), given, noise(), plan)
    assert torch.equal(found, sample(wan, given, noise(), plan))


def test_chunks_are_not_the_bidirectional_sampler(wan, causal, given):
    found = roll_out(causal(2), given, noise(), PLAIN)
    assert (found - sample(wan, given, noise(), PLAIN)).abs().max() > 1e-3


@pytest.fixture
def acting(given):
    """The conditions, and actions of every video frame."""
    generator = torch.Generator().manual_seed(3)
    pressed = torch.randint(0, 2, (B, 17, 4), generator=generator).float()
    return replace(given, actions=Actions(pressed, torch.randn(B, 17, 2, generator=generator)))


def game(chunk_frames):
    """A model that takes actions, none of whose layers is neutral."""
    added = {"action_blocks": 1, "action_dim": 24, "action_heads": 2, "key_dim": 8, "keys": 4}
    config = MatrixGameConfig(**asdict(CONFIG), **added, chunk_frames=chunk_frames)
    return moved_off(build_model(config, seed=1, zero_head=False))


@torch.no_grad()
def test_a_model_that_takes_actions_is_given_them(acting):
    found = roll_out(game(2), acting, noise(), PLAIN)
    expected = slow_reference(game(2), acting, noise(), PLAIN)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)
    one_chunk = roll_out(game(FRAMES), acting, noise(), GUIDED)
    assert torch.equal(one_chunk, sample(game(FRAMES), acting, noise(), GUIDED))
    still = replace(acting, actions=acting.actions._replace(mouse=torch.zeros(B, 17, 2)))
    assert not torch.equal(roll_out(game(2), still, noise(), PLAIN), found)


def test_later_noise_and_conditions_do_not_reach_earlier_chunks(causal, given):
    before = roll_out(causal(2), given, noise(), GUIDED)
    changed_noise, ids, texts = noise(), given.sem_ids.clone(), given.context_ids.clone()
    changed_noise[:, :, 2:] += 1
    ids[:, 5:] = 3
    texts[:, 2:] = 1
    changed = replace(given, sem_ids=ids, context_ids=texts)
    after = roll_out(causal(2), changed, changed_noise, GUIDED)
    assert torch.equal(after[:, :, :2], before[:, :, :2])
    assert (after != before)[:, :, 2:].flatten(3).any(-1).all()


def test_without_semantic_ids(causal, given):
    model = causal(2)
    without = replace(given, sem_ids=None)
    plan = Plan(2, 5.0, sem_cfg=1.5)  # guides away from nothing
    assert torch.equal(
        roll_out(model, without, noise(), plan), roll_out(model, without, noise(), Plan(2, 5.0))
    )


@pytest.mark.parametrize(("chunk_frames", "steps"), [(2, 9), (5, 3), (1, 15)])
def test_progress_counts_the_steps_of_all_chunks(causal, given, chunk_frames, steps):
    done: list[int] = []
    model = causal(chunk_frames)
    roll_out(model, given, noise(), PLAIN, progress=done.append)
    assert rollout_steps(model, FRAMES, PLAIN) == steps
    # A first chunk of nothing but the clean frame takes no step.
    assert done == list(range(4 if chunk_frames == 1 else 1, steps + 1))
