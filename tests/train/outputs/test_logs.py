"""CSV logs hold one row per step, whatever was killed."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gc25d.records import read_csv
from gc25d.train.outputs.logs import VAL_COLUMNS, RunLog, StepCsv, validated

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


def test_columns_of_a_methods_own_come_behind_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = StepCsv(path, COLUMNS, 0)
    log.write({"step": 1, "loss": 0.5})
    log.write({"step": 2, "loss": 0.4, "reward": 3, "a, b": "x"})
    log.write({"step": 3, "loss": 0.3})
    log.close()
    assert path.read_text() == 'step,loss,"a, b",reward\n1,0.5,,\n2,0.4,x,3\n3,0.3,,\n'
    again = StepCsv(path, COLUMNS, 2)  # step 3 was after the state
    again.write({"step": 3, "loss": 0.3, "bonus": 1})
    again.close()
    assert path.read_text() == ('step,loss,"a, b",bonus,reward\n1,0.5,,,\n2,0.4,x,,3\n3,0.3,,1,\n')
    # Fixed columns in another order are another header.
    StepCsv(path, ("loss", "step"), 3).close()
    assert path.read_text() == "loss,step\n"
    assert (tmp_path / "log.1.csv").read_text().startswith('step,loss,"a, b"')


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in board.Scalars(name)]


def validation(step: int, *mses: float) -> list[dict[str, float]]:
    """A row for t = 200, 500, …; without condition the error is a quarter more."""
    return [
        dict(zip(VAL_COLUMNS, (step, 200 + 300 * i, m, 1.25 * m, m, 0.25 * m, 0.0, 2), strict=True))
        for i, m in enumerate(mses)
    ]


def test_tensorboard_has_means_over_timesteps_and_a_methods_own(tmp_path: Path) -> None:
    with RunLog(tmp_path, 0, 9, 9) as log:
        log.validation(4, validation(4, 1.0, 3.0), {"win_rate": 0.75})
    assert scalars(tmp_path, "val/mse/t200") == [(4, 1.0)]
    assert scalars(tmp_path, "val/mse/t500") == [(4, 3.0)]
    assert scalars(tmp_path, "val/mse_mean") == [(4, 2.0)]
    assert scalars(tmp_path, "val/mse_uncond_mean") == [(4, 2.5)]
    assert scalars(tmp_path, "val/gap_uncond_mean") == [(4, 0.5)]
    assert scalars(tmp_path, "val/gap_nulltext_mean") == [(4, 0.0)]
    assert scalars(tmp_path, "val/win_rate") == [(4, 0.75)]
    rows = read_csv(tmp_path / "val_log.csv")
    assert tuple(rows[0]) == (*VAL_COLUMNS, "win_rate")
    assert [row["win_rate"] for row in rows] == ["0.75", "0.75"]
    with RunLog(tmp_path, 4, 9, 9) as log, pytest.raises(ValueError, match=r"'mse'.* are columns"):
        log.validation(8, validation(8, 1.0), {"mse": 1.0})


def test_tensorboard_has_the_condition_beside_the_picture(tmp_path: Path) -> None:
    row = {"step": 1, "loss": 1.0, "step_time": 1.0, "sem_rms": 0.5, "x_rms": 2.0, "clips": "c"}
    with RunLog(tmp_path, 0, 9, 9) as log:
        log.train_row(row)
        log.train_row({**row, "step": 2, "x_rms": 0.0})
        log.train_row({name: row[name] for name in ("loss", "step_time", "clips")} | {"step": 3})
    assert scalars(tmp_path, "train/sem_over_x") == [(1, 0.25)]
    assert "sem_over_x" not in read_csv(tmp_path / "train_log.csv")[0]


def test_what_there_is_of_a_cut_first_validation_goes(tmp_path: Path) -> None:
    with RunLog(tmp_path, 0, 9, 9, baseline=True) as log:
        log.validation(0, validation(0, 5.0), {})  # one of two timesteps, then killed
    assert not validated(tmp_path, 0, 2)
    with RunLog(tmp_path, 0, 9, 9, baseline=True) as log:
        log.validation(0, validation(0, 1.0, 3.0), {})
    assert validated(tmp_path, 0, 2)
    assert [row["mse"] for row in read_csv(tmp_path / "val_log.csv")] == ["1.0", "3.0"]
    with RunLog(tmp_path, 0, 9, 9):  # not due again: it stays
        pass
    assert validated(tmp_path, 0, 2)
    assert not validated(tmp_path / "elsewhere", 0, 1)
