import math

import numpy as np
import pytest
from PIL import Image

from gc25d.errors import UserError
from gc25d.evaluate.curves import (
    DPI,
    column,
    running_mean,
    save_png,
    scores_figure,
    training_figure,
)
from gc25d.evaluate.metrics import ClipScores


def train_rows(steps: int) -> list[dict[str, str]]:
    return [
        {
            "step": str(s),
            "loss": str(1 / s),
            "grad_norm": str(2.0 * s),
            "lr": "1e-3",
            "cond_lr": "1e-2",
        }
        for s in range(1, steps + 1)
    ]


def val_rows() -> list[dict[str, str]]:
    return [
        {
            "step": str(step),
            "timestep": str(t),
            "mse": "0.5",
            "gap_uncond": str(step * t),
            "gap_nulltext": str(-step),
        }
        for step in (10, 20)
        for t in (799.712, 201.342)
    ]


def test_running_mean_equals_the_mean_of_the_last_values():
    values = np.random.default_rng(0).normal(size=23)
    by_hand = [values[max(0, i - 6) : i + 1].mean() for i in range(23)]
    assert running_mean(values, 7) == pytest.approx(by_hand)


def test_running_mean_leaves_nan_out():
    values = np.array([1.0, math.nan, 3.0, math.nan, math.nan])
    np.testing.assert_allclose(running_mean(values, 2), [1, 1, 3, 3, math.nan])


def test_column_reads_numbers_and_empty_cells():
    np.testing.assert_array_equal(column([{"a": "1.5"}, {"a": ""}], "a"), [1.5, math.nan])
    with pytest.raises(UserError, match="row 1 has no column b; columns are a"):
        column([{"a": "1"}], "b")
    with pytest.raises(UserError, match="row 2, column a: 'x'"):
        column([{"a": "1"}, {"a": "x"}], "a")


def test_the_figure_draws_the_logged_values():
    figure = training_figure(train_rows(40), val_rows())
    axes = {axis.get_title(): axis for axis in figure.axes}
    raw = axes["training loss"].lines[0]
    np.testing.assert_allclose(raw.get_ydata(), [1 / s for s in range(1, 41)])
    assert len(axes["learning rate"].lines) == 2
    zero, low, high = axes["gap without condition"].lines
    assert set(zero.get_ydata()) == {0}
    assert (low.get_label(), high.get_label()) == ("t = 201", "t = 800")
    np.testing.assert_allclose(low.get_ydata(), [2013.42, 4026.84])
    np.testing.assert_allclose(high.get_xdata(), [10, 20])


def test_no_validation_yet_is_no_error(tmp_path):
    save_png(tmp_path / "f.png", training_figure(train_rows(1), []))
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.size == (13 * DPI, 7.5 * DPI)


def test_equal_figures_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        save_png(tmp_path / name, training_figure(train_rows(5), val_rows()))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_scores_are_drawn_from_frame_one():
    clip = ClipScores("c", (20.0, 18.0, 15.0), (0.9, 0.8, 0.7))
    ceiling = ClipScores("c", (40.0, 39.0, 38.0), (0.99, 0.98, 0.97))
    psnr, ssim = scores_figure([clip], [ceiling]).axes
    np.testing.assert_array_equal(psnr.lines[0].get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(psnr.lines[1].get_ydata(), ceiling.psnr)
    np.testing.assert_array_equal(ssim.lines[0].get_ydata(), clip.ssim)
