import numpy as np

from gc25d.dataset.clips import ClipDataset
from gc25d.evaluate.coverage import coverage_figure, coverage_summary, measure_coverage


def test_shares_are_of_the_static_pixels_of_each_frame(small_dataset):
    curves = measure_coverage(small_dataset, seed=3, n=12)
    assert {policy: shares.shape for policy, shares in curves.items()} == {
        "first_frame": (12, 9),
        "mean_frame": (12, 9),
        "capped": (12, 9),
    }
    clips = ClipDataset(small_dataset, "train", seed=3, mask_p=1.0)
    stored = clips.clip(clips.rows[1].clip_id).sem_ids.numpy()
    masked = clips.sample(1, 1).sem_ids.numpy()  # sample 11 of 10 clips: epoch 1, index 1
    frame = 4
    expected = (masked[frame] == 255).sum() / (stored[frame] <= 6).sum()
    assert curves["first_frame"][11, frame] == expected
    assert (curves["capped"] <= 0.4).all()
    assert (curves["capped"] <= curves["first_frame"]).all()
    assert curves["first_frame"].max() > 0.4


def test_figure_has_a_panel_for_each_policy():
    shares = np.linspace(0, 1, 40).reshape(4, 10)
    figure = coverage_figure({"first_frame": shares, "capped": np.minimum(shares, 0.4)})
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["first_frame: 10.0% of frames above 90%", "capped: 0.0% of frames above 90%"]
    mean = next(line for line in figure.axes[0].lines if line.get_label() == "mean")
    assert np.allclose(mean.get_ydata(), shares.mean(axis=0))


def test_summary_by_hand():
    shares = np.array([[0.0, np.nan, np.nan], [0.5, 0.2, np.nan], [1.0, 0.4, np.nan]])
    assert coverage_summary({"capped": shares})["capped"] == {
        "clips": 3,
        "mean": [0.5, 0.3, None],
        "p90": [0.9, 0.38, None],
        "frames_over_90_percent": 0.2,
    }
