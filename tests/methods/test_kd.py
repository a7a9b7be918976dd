"""Cached teacher paths and the regression to them, on linear networks with known solutions."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from gc25d.errors import UserError
from gc25d.methods.base import TOTAL_LOSS
from gc25d.methods.kd import KdMethod
from gc25d.methods.ode.cache import OdeCache
from gc25d.records import read_json, write_json
from gc25d.sampling.euler import OdePlan, path_noise, solve
from gc25d.sampling.guidance import Guidance

SHAPE = (2, 3, 2, 2)  # channels, frames, rows, columns of the toy batch
PLAN = OdePlan(teacher_steps=6, denoising_steps=2, shift=5.0)
# 5σ/(1 + 4σ) of 1, 5/6, …, 1/6, then 0.
SIGMAS = [5 * i / (6 + 4 * i) for i in range(6, -1, -1)]
FACTS = {"clips": 3, "path_shape": [3, *SHAPE], "teacher": "abc"}


def stored(folder: Path, paths: torch.Tensor) -> OdeCache:
    cache = OdeCache(folder, {**FACTS, "clips": len(paths), "path_shape": list(paths.shape[1:])})
    cache.claim()
    for index, path in enumerate(paths):
        cache.write(index, path)
    assert cache.seal()
    return cache


def test_solver_keeps_the_students_points(toy, toy_batch) -> None:
    """For v = a·x Euler's method multiplies by 1 + a·(σ' − σ)."""
    batch, a = toy_batch([1, 2]), 0.4
    noise = path_noise(0, [1, 2], SHAPE)
    model = toy(a)
    paths = solve(model, batch, noise, PLAN, Guidance())
    assert PLAN.sigmas == pytest.approx(SIGMAS)
    assert PLAN.student_timesteps.tolist() == pytest.approx([1000.0, 1000 * SIGMAS[3]])
    factors = [1 + a * (after - now) for now, after in pairwise(SIGMAS)]
    half = factors[0] * factors[1] * factors[2]
    whole = half * factors[3] * factors[4] * factors[5]
    for point, factor in enumerate((1.0, half, whole)):
        torch.testing.assert_close(paths[:, point, :, 1:], factor * noise[:, :, 1:])
        assert torch.equal(paths[:, point, :, 0], batch.latents[:, :, 0])
    assert [timestep[0].tolist() for _, timestep, _ in model.calls] == [
        pytest.approx([0, 1000 * sigma, 1000 * sigma]) for sigma in SIGMAS[:-1]
    ]


def test_paths_noise_belongs_to_the_clip() -> None:
    together, alone = path_noise(0, [1, 2], SHAPE), path_noise(0, [2], SHAPE)
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(alone, path_noise(1, [2], SHAPE))


def test_loss_by_hand(toy, toy_batch, tmp_path: Path) -> None:
    # bf16 holds these values exactly.
    paths = torch.randint(-8, 8, (6, 3, *SHAPE), generator=torch.Generator().manual_seed(0)) / 4
    batch, a = toy_batch([1, 4]), 0.5
    subject = KdMethod(toy(a), stored(tmp_path, paths), torch.tensor([1000.0, 600.0]), seed=0)
    levels = subject.draw(batch)
    loss_map, outputs, metrics = subject.single_train_step(batch, 0)
    expected, slope, times = 0.0, 0.0, 0.0
    for i, index in enumerate((1, 4)):
        level = int(levels[i, 1])
        assert levels[i].tolist() == [level] * 3
        sigma = (1.0, 0.6)[level]
        x, end = paths[index, level, :, 1:], paths[index, 2, :, 1:]
        error = (1 - sigma * a) * x - end
        expected += error.square().mean().item() / 2
        slope += (2 * error * -sigma * x).mean().item() / 2
        times += 1000 * sigma / 2
    assert loss_map[TOTAL_LOSS].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["timestep"].item() == pytest.approx(times)
    subject.backward(loss_map, outputs, 1)
    assert subject.roles["student"].a.grad.item() == pytest.approx(slope, rel=1e-5)
    (seen, timestep, _), *_ = subject.roles["student"].calls
    assert torch.equal(seen[:, :, 0], batch.latents[:, :, 0])
    assert timestep[:, 0].tolist() == [0, 0]


def test_a_causal_students_chunks_have_levels_of_their_own(toy, toy_batch, tmp_path: Path) -> None:
    paths = torch.arange(3.0)[None, :, None, None, None, None].expand(9, 3, *SHAPE)
    cache, timesteps = stored(tmp_path, paths), torch.tensor([1000.0, 600.0])
    subject = KdMethod(toy(0.0), cache, timesteps, seed=0, chunk_frames=2)
    batch = toy_batch(list(range(9)))
    levels = subject.draw(batch)
    assert torch.equal(levels[:, 0], levels[:, 1])
    assert not torch.equal(levels[:, 1], levels[:, 2])
    subject.single_train_step(batch, 0)
    (seen, timestep, _), *_ = subject.roles["student"].calls
    assert torch.equal(seen[:, 0, 1:, 0, 0], levels[:, 1:].float())  # a point's value is its level
    assert torch.equal(timestep[:, 1:], timesteps[levels[:, 1:]])
    alone = KdMethod(toy(0.0), cache, timesteps, seed=0, chunk_frames=2).draw(toy_batch([5]))
    assert torch.equal(alone[0], levels[5])


def test_a_stopped_builder_goes_on_with_the_missing_paths(tmp_path: Path) -> None:
    cache = OdeCache(tmp_path, FACTS)
    cache.claim()
    cache.write(1, torch.ones(3, *SHAPE))
    cache.write(2, torch.ones(3, *SHAPE))
    assert cache.missing(range(3)) == [0]
    assert not cache.seal()
    with pytest.raises(UserError, match="COMPLETE: not found: build the paths first"):
        cache.check_complete()
    file = tmp_path / "paths/000001.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    again = OdeCache(tmp_path, FACTS)
    again.claim()
    assert again.missing(range(3)) == [0, 1]
    for index in (0, 1):
        again.write(index, torch.zeros(3, *SHAPE))
    assert again.seal()
    again.check_complete()
    assert torch.equal(again.read(2), torch.ones(3, *SHAPE, dtype=torch.bfloat16))


def test_paths_of_something_else_are_refused(tmp_path: Path) -> None:
    stored(tmp_path, torch.ones(3, 3, *SHAPE))
    other = OdeCache(tmp_path, {**FACTS, "teacher": "xyz"})
    for check in (other.claim, other.check_complete):
        with pytest.raises(UserError, match="made with teacher 'abc', this run needs 'xyz': set "):
            check()
    assert read_json(tmp_path / "metadata.json") == FACTS
    with pytest.raises(ValueError, match=r"a path of \[2, 2, 3, 2, 2\]"):
        OdeCache(tmp_path, FACTS).write(0, torch.ones(2, *SHAPE))
    write_json(tmp_path / "COMPLETE", {"clips": 3, "metadata_sha256": "0"})
    with pytest.raises(UserError, match="COMPLETE is not of these paths"):
        OdeCache(tmp_path, FACTS).check_complete()
