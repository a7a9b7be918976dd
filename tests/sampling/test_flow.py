"""Flow matching: the training grid, its weights, noising and the clean first frame."""

import math

import pytest
import torch

from gc25d.sampling import flow


@pytest.mark.parametrize(
    ("wanted", "timestep", "weight"),
    [(200, 201.342, 1.2142), (500, 500.600, 2.0764), (800, 799.712, 1.2086)],
)
def test_grid_points_and_weights_of_the_contract(
    wanted: float, timestep: float, weight: float
) -> None:
    grid = flow.training_grid()
    index = flow.nearest_grid_index(grid, wanted)
    assert float(grid[index]) == pytest.approx(timestep, abs=5e-4)
    assert float(flow.training_weights(grid)[index]) == pytest.approx(weight, abs=5e-5)


def test_grid_by_hand() -> None:
    grid = flow.training_grid()
    assert grid.dtype == torch.float32
    assert len(grid.unique()) == 1000
    assert float(grid[0]) == 1000.0
    # Point 500: σ = 0.5 → 5·0.5 / (1 + 4·0.5) = 2.5 / 3.
    assert float(grid[500]) == pytest.approx(2500 / 3, rel=1e-6)
    # Point 999: σ = 0.001 → 0.005 / 1.004.
    assert float(grid[999]) == pytest.approx(5 / 1.004, rel=1e-6)


def test_bf16_would_collapse_the_grid() -> None:
    assert len(flow.training_grid().bfloat16().unique()) == 294


def test_weights_by_hand() -> None:
    grid = flow.training_grid()
    bell = [math.exp(-2 * ((t - 500) / 1000) ** 2) for t in grid.tolist()]
    raised = [value - min(bell) for value in bell]
    mean = sum(raised) / len(raised)
    expected = torch.tensor([value / mean for value in raised])
    torch.testing.assert_close(flow.training_weights(grid), expected)
    assert float(flow.training_weights(grid).mean()) == pytest.approx(1, abs=1e-6)


def test_sampling_schedule_ends_before_zero() -> None:
    # 5 steps, shift 5: σ = 1, .8, .6, .4, .2 → 5σ / (1 + 4σ).
    expected = [5 * s / (1 + 4 * s) for s in (1, 0.8, 0.6, 0.4, 0.2)]
    assert flow.shifted_sigmas(5, 5.0).tolist() == pytest.approx(expected)


def test_noising_and_target() -> None:
    clean, noise = torch.full((1, 1), 2.0), torch.full((1, 1), -1.0)
    assert flow.add_noise(clean, noise, torch.tensor(250.0)).item() == pytest.approx(1.25)
    assert flow.velocity(clean, noise).item() == -3.0


def test_first_frame_is_clean_and_the_noised_tensor_untouched() -> None:
    clean, noisy = torch.zeros(2, 3, 4, 2, 2), torch.ones(2, 3, 4, 2, 2)
    inputs, per_frame = flow.condition_first_frame(noisy, clean, torch.tensor([300.0, 700.0]))
    assert not inputs[:, :, 0].any()
    assert inputs[:, :, 1:].all()
    assert noisy.all()
    assert per_frame.tolist() == [[0, 300, 300, 300], [0, 700, 700, 700]]


def test_error_leaves_out_the_first_frame() -> None:
    target = torch.zeros(1, 1, 3, 1, 1)
    prediction = torch.tensor([100.0, 1.0, 3.0]).reshape(1, 1, 3, 1, 1)
    assert flow.squared_error(prediction, target).tolist() == [5.0]  # (1 + 9) / 2


@pytest.mark.parametrize(("step", "factor"), [(0, 0.25), (1, 0.5), (3, 1.0), (9, 1.0)])
def test_warmup(step: int, factor: float) -> None:
    assert flow.warmup_factor(step, 4) == factor
    assert flow.warmup_factor(step, 0) == 1.0
