"""CSV logs hold one row per step, whatever was killed."""

from pathlib import Path

import pytest

from gc25d.records import read_csv
from gc25d.train.logs import StepCsv

COLUMNS = ("step", "loss")


def test_rows_after_the_resumed_step_and_cut_rows_go(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25\n3,0.125\n4,0.0")
    log = StepCsv(path, COLUMNS, 2)
    log.write({"step": 3, "loss": 0.1})
    log.close()
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n3,0.1\n"


def test_a_row_is_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = StepCsv(path, COLUMNS, 0)
    log.write({"step": 1, "loss": 0.1 + 0.2})
    assert float(read_csv(path)[0]["loss"]) == 0.1 + 0.2
    log.close()


def test_another_header_moves_the_old_file_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,mse\n1,0.5\n")
    (tmp_path / "log.1.csv").write_text("older")
    StepCsv(path, COLUMNS, 1).close()
    assert path.read_text() == "step,loss\n"
    assert (tmp_path / "log.2.csv").read_text() == "step,mse\n1,0.5\n"
    assert "moved to log.2.csv" in caplog.text
