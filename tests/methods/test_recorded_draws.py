"""What a recorded training drew of noise, timesteps and levels, worked out by hand."""

import pytest
import torch

from gc25d.methods.dfsft import DfsftMethod
from gc25d.methods.distill import DistillConfig
from gc25d.methods.dmd2 import Dmd2Method
from gc25d.methods.finetune import FinetuneMethod
from gc25d.methods.kd import KdMethod
from gc25d.sampling.euler import path_noise

SEED, EPOCH, INDICES = 3, 2, [4, 9]
SHAPE = (2, 3, 2, 2)
PLACES = [(EPOCH, index) for index in INDICES]


@pytest.fixture
def batch(toy_batch):
    return toy_batch(INDICES, epoch=EPOCH)


@pytest.fixture
def distill(toy):
    config = DistillConfig(denoising_steps=4)
    return Dmd2Method(toy(0.1), toy(0.2), toy(0.3), seed=SEED, config=config)


def test_one_timestep_then_the_noise_of_a_sample(toy, batch, drawn_by_hand):
    index, noise = FinetuneMethod(toy(0.1), seed=SEED).draw(batch)
    for row, place in enumerate(PLACES):
        stream = drawn_by_hand(SEED, "diffusion", *place)
        assert index[row] == torch.randint(1000, (), generator=stream)
        assert torch.equal(noise[row], torch.randn(SHAPE, generator=stream))


def test_a_timestep_a_chunk_then_the_noise_of_a_sample(toy, batch, drawn_by_hand):
    index, noise = DfsftMethod(toy(0.1), seed=SEED, chunk_frames=2).draw(batch)
    for row, place in enumerate(PLACES):
        stream = drawn_by_hand(SEED, "diffusion", *place)
        first, second = torch.randint(1000, (2,), generator=stream).tolist()
        assert index[row].tolist() == [first, first, second]
        assert torch.equal(noise[row], torch.randn(SHAPE, generator=stream))


def test_a_level_a_chunk_of_a_teachers_path(toy, batch, drawn_by_hand):
    subject = KdMethod(toy(0.1), None, torch.arange(4.0), seed=SEED, chunk_frames=2)
    levels = subject.draw(batch)
    for row, place in enumerate(PLACES):
        drawn = torch.randint(4, (2,), generator=drawn_by_hand(SEED, "path level", *place))
        assert levels[row].tolist() == [drawn[0], drawn[0], drawn[1]]


@pytest.mark.parametrize("purpose", ["distill generator", "distill critic"])
def test_where_scores_are_compared(distill, batch, drawn_by_hand, monkeypatch, purpose):
    """Within 2 % to 98 % of the grid; each loss has a stream of its own."""
    asked = {}
    draw = distill.draw_score

    def told(name, samples):
        return asked.setdefault(name, draw(name, samples))

    monkeypatch.setattr(distill, "draw_score", told)
    distill.single_train_step(batch, 0)
    assert list(asked) == ["distill generator", "distill critic"]
    index, noise = asked[purpose]
    for row, place in enumerate(PLACES):
        stream = drawn_by_hand(SEED, purpose, *place)
        assert index[row] == torch.randint(20, 980, (), generator=stream)
        assert torch.equal(noise[row], torch.randn(SHAPE, generator=stream))


def test_the_noise_of_a_students_own_clip_and_where_it_stops(distill, batch, drawn_by_hand):
    noises = distill.draw_noises(batch)
    for row, place in enumerate(PLACES):
        stream = drawn_by_hand(SEED, "roll-out", *place)
        assert torch.equal(noises[:, row], torch.randn(4, *SHAPE, generator=stream))
    for step in range(5):
        stream = drawn_by_hand(SEED, "exit", step)
        assert distill.draw_exits(step, 3) == torch.randint(4, (3,), generator=stream).tolist()


def test_the_noise_of_a_teachers_path(drawn_by_hand):
    noise = path_noise(SEED, INDICES, SHAPE)
    for row, index in enumerate(INDICES):
        stream = drawn_by_hand(SEED, "ode path", index)
        assert torch.equal(noise[row], torch.randn(SHAPE, generator=stream))
