"""Diffusion forcing against its formula, frame by frame, on a small block-causal model."""

import math

import pytest
import torch

from gc25d.methods.base import TOTAL_LOSS
from gc25d.methods.dfsft import DfsftMethod
from gc25d.methods.finetune import FinetuneMethod


def test_loss_is_the_formula(causal, clips_batch) -> None:
    model, batch = causal(2), clips_batch([4, 9])
    subject = DfsftMethod(model, seed=0, chunk_frames=2)
    index, noise = subject.draw(batch)
    loss_map, _, metrics = subject.single_train_step(batch, 0)
    bells = torch.exp(-2 * ((subject.grid.double() - 500) / 1000) ** 2)
    losses, errors, timesteps = [], [], []
    for i in range(2):
        t = subject.grid[index[i]]
        sigma = (t / 1000)[None, :, None, None]
        x = (1 - sigma) * batch.latents[i] + sigma * noise[i]
        x[:, 0] = batch.latents[i][:, 0]
        per_frame = torch.cat([torch.zeros(1), t[1:]])
        text = (batch.prompts, batch.prompt_lengths, batch.context_ids[i : i + 1])
        found = model(x[None], per_frame[None], *text, batch.sem_ids[i : i + 1]).prediction[0]
        for frame in range(1, 5):
            target = noise[i][:, frame] - batch.latents[i][:, frame]
            error = (found[:, frame] - target).square().mean().item()
            bell = math.exp(-2 * ((t[frame].item() - 500) / 1000) ** 2) - bells.min().item()
            losses.append(bell / (bells - bells.min()).mean().item() * error)
            errors.append(error)
            timesteps.append(t[frame].item())
    assert loss_map[TOTAL_LOSS].item() == pytest.approx(sum(losses) / 8, rel=1e-4)
    assert metrics["mse"].item() == pytest.approx(sum(errors) / 8, rel=1e-4)
    assert metrics["timestep"].item() == pytest.approx(sum(timesteps) / 8, rel=1e-5)


def test_a_chunk_has_one_timestep_of_its_own(causal, clips_batch) -> None:
    subject = DfsftMethod(causal(2), seed=0, chunk_frames=2)
    index, noise = subject.draw(clips_batch([4, 9]))
    assert index.shape == (2, 5)
    for row in index.tolist():
        assert row[0] == row[1]
        assert row[2] == row[3]
        assert len(set(row)) == 3
    alone, alone_noise = subject.draw(clips_batch([9]))
    assert torch.equal(index[1], alone[0])
    assert torch.equal(noise[1], alone_noise[0])
    later, _ = subject.draw(clips_batch([9], epoch=1))
    assert not torch.equal(alone, later)


def test_chunks_draw_independently_and_over_the_whole_grid(causal, clips_batch) -> None:
    subject = DfsftMethod(causal(2), seed=0, chunk_frames=2)
    index, _ = subject.draw(clips_batch(list(range(300))))
    first, second = index[:, 1].double(), index[:, 2].double()
    # Of 300 independent pairs the correlation has a standard error of 1/√300 = 0.058; 4 of them.
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 0.24
    assert abs(second.mean().item() - 499.5) < 67


def test_one_chunk_of_all_frames_is_finetune(causal, bidirectional, clips_batch) -> None:
    """With a single timestep a clip and nothing to hide, both methods have one formula."""
    batch = clips_batch([1, 2])
    chunked = DfsftMethod(causal(5), seed=0, chunk_frames=5)
    whole = FinetuneMethod(bidirectional(), seed=0)
    drawn = whole.draw(batch)
    chunked.draw = lambda _: (drawn[0][:, None].expand(-1, 5), drawn[1])
    one = chunked.single_train_step(batch, 0)[0][TOTAL_LOSS]
    other = whole.single_train_step(batch, 0)[0][TOTAL_LOSS]
    assert one.item() == pytest.approx(other.item(), rel=1e-5)
