"""What a validation compares: one noise for three passes, which differ in one thing each."""

import math
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from gc25d.dataset.batch import Batch
from gc25d.model.interface import ModelOutput
from gc25d.prep.text import TextTable
from gc25d.train.validate import Validation

SEED, INDICES = 11, [3, 8]
SHAPE = (2, 3, 2, 2)
# Sorted, as every table: the empty prompt stands between two others, and all lengths differ.
KEYS = ("ATTACK", "NULL_PROMPT", "walk")
TABLE = TextTable(
    torch.arange(1.0, 25.0).reshape(3, 4, 2).bfloat16(), torch.tensor([4, 1, 2]), KEYS
)
EMPTY = [[[9.0, 10.0], [11.0, 12.0], [13.0, 14.0], [15.0, 16.0]]]


class Recorder(nn.Module):
    """Keeps what it is asked; v = 0 of clips as they are, 1 of unknown ids, 2 of the empty prompt.

    Which pass it is asked in is told by its number, so that a wrong content cannot hide.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, ...]] = []
        self.modes: list[bool] = []

    def forward(self, latents: Tensor, timestep: Tensor, *given: Tensor) -> ModelOutput:
        value = float(len(self.calls) % 3)
        self.calls.append((latents, timestep, *given))
        self.modes.append(self.training or torch.is_grad_enabled())
        return ModelOutput(torch.full_like(latents, value), {})


def validation_batch() -> Batch:
    draw = torch.Generator().manual_seed(5)
    return Batch(
        latents=torch.randn(2, *SHAPE, generator=draw),
        prompts=TABLE.embeddings[[0, 2]].float(),
        prompt_lengths=TABLE.lengths[[0, 2]],
        context_ids=torch.tensor([[0, 1, 1], [1, 1, 0]]),
        sem_ids=torch.randint(0, 22, (2, 9, 32, 32), generator=draw).to(torch.uint8),
        clip_ids=["a", "b"],
        epochs=[0, 0],
        indices=INDICES,
        dropped=[{"text": False, "cond": False, "mask": 0.0}] * 2,
    )


def told(model: Recorder, timesteps: list[float]) -> list[dict[str, float | int]]:
    validation = Validation([(0, validation_batch())], TABLE, timesteps, SEED, lambda own: [own])
    return validation.run(model, 7)


def test_the_three_passes_differ_in_one_thing_each() -> None:
    model = Recorder()
    told(model, [500])
    assert len(model.calls) == 3
    assert not any(model.modes)
    assert model.training
    batch = validation_batch()
    given = (batch.prompts, batch.prompt_lengths, batch.context_ids, batch.sem_ids)
    conditioned, unknown, empty = (call[2:] for call in model.calls)
    assert all(map(torch.equal, conditioned, given))
    assert all(map(torch.equal, unknown[:3], given[:3]))
    assert unknown[3].shape == batch.sem_ids.shape
    assert unknown[3].dtype == torch.uint8
    assert (unknown[3] == 255).all()
    assert torch.equal(empty[3], batch.sem_ids)
    prompts, lengths, context_ids = empty[:3]
    assert prompts.tolist() == EMPTY
    assert prompts.dtype == torch.float32
    assert lengths.tolist() == [1]
    assert context_ids.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize(("wanted", "timestep"), [(200, 201.342), (500, 500.600), (800, 799.712)])
def test_every_pass_sees_a_clips_own_noise(drawn_by_hand, wanted: float, timestep: float) -> None:
    """The same at every timestep and every validation: x = (1 − σ)·x0 + σ·ε, frame 0 clean."""
    model = Recorder()
    told(model, [wanted])
    batch = validation_batch()
    sigma = timestep / 1000
    for row, index in enumerate(INDICES):
        clean = batch.latents[row]
        noise = torch.randn(SHAPE, generator=drawn_by_hand(SEED, "validation", index))
        expected = (1 - sigma) * clean + sigma * noise
        expected[:, 0] = clean[:, 0]
        for latents, times, *_ in model.calls:
            torch.testing.assert_close(latents[row], expected, rtol=1e-5, atol=1e-5)
            assert times[row].tolist() == pytest.approx([0.0, timestep, timestep], abs=1e-3)
    first, *others = model.calls
    assert all(torch.equal(other[0], first[0]) for other in others)


def test_gaps_are_how_much_worse_a_pass_is(drawn_by_hand) -> None:
    """Errors of v = 0, 1 and 2 against ε − x0 over the frames after the first, by hand."""
    (row,) = told(Recorder(), [500])
    batch = validation_batch()
    targets = [
        (torch.randn(SHAPE, generator=drawn_by_hand(SEED, "validation", index)) - clean)[:, 1:]
        for index, clean in zip(INDICES, batch.latents, strict=True)
    ]
    errors = [
        math.fsum(float((value - target).square().mean()) for target in targets) / 2
        for value in (0.0, 1.0, 2.0)
    ]
    names = ("mse", "mse_uncond", "mse_nulltext")
    assert [row[name] for name in names] == pytest.approx(errors, rel=1e-5)
    assert row["gap_uncond"] == pytest.approx(errors[1] - errors[0], rel=1e-4)
    assert row["gap_nulltext"] == pytest.approx(errors[2] - errors[0], rel=1e-4)
    assert (row["step"], row["n"]) == (7, 2)
    assert row["timestep"] == pytest.approx(500.600, abs=1e-3)


def test_the_batch_itself_stays_as_it_is() -> None:
    batch = validation_batch()
    Validation([(0, batch)], TABLE, [500], SEED, lambda own: [own]).run(Recorder(), 1)
    fresh = validation_batch()
    for name in (f.name for f in fields(Batch)):
        before, after = getattr(fresh, name), getattr(batch, name)
        same = torch.equal(before, after) if isinstance(before, Tensor) else before == after
        assert same, name
