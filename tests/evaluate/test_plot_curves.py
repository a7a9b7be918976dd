import argparse

import pytest
from PIL import Image

from gc25d.errors import UserError
from gc25d.records import csv_text
from gc25d.steps import plot_curves

TRAIN = ["step", "loss", "grad_norm", "lr", "cond_lr"]


def arguments(folder) -> argparse.Namespace:
    return argparse.Namespace(
        train_log=folder / "train_log.csv", val_log=folder / "val_log.csv", out=folder / "f/c.png"
    )


def test_the_figure_is_written_without_a_validation_yet(tmp_path):
    rows = [dict.fromkeys(TRAIN, step) for step in (1, 2, 3)]
    (tmp_path / "train_log.csv").write_text(csv_text(TRAIN, rows))
    plot_curves.main(arguments(tmp_path))
    with Image.open(tmp_path / "f/c.png") as picture:
        assert picture.format == "PNG"


def test_no_log_and_a_log_without_a_column_are_named(tmp_path):
    with pytest.raises(UserError, match=r"train_log\.csv: no rows"):
        plot_curves.main(arguments(tmp_path))
    (tmp_path / "train_log.csv").write_text("step,lr\n1,2\n")
    with pytest.raises(UserError, match=r"train_log\.csv or .*no column loss"):
        plot_curves.main(arguments(tmp_path))
    assert not (tmp_path / "f").exists()
