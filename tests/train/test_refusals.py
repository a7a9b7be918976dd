"""Training that goes wrong stops before the update, and says where."""

from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.records import read_csv
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment
from small_step import small_step

# The first update makes weights of 1e30, whose products are beyond float32.
SETTINGS = small_step(
    train={"global_batch": 2, "warmup_steps": 0, "cpu_threads": 1, "lr": 1e30},
    validation={"n": 1, "timesteps": [500]},
)


def test_a_loss_that_is_not_finite_names_its_clips_and_keeps_the_state(
    small_dataset: Path, tmp_path: Path
) -> None:
    files = SegmentFiles(tmp_path / "w", tmp_path / "p", tmp_path / "d")
    pace = Pace(micro_batch=1, save_every=1, validate_every=9, log_every=1, workers=0)
    with pytest.raises(UserError) as refused:
        train_segment(SETTINGS, small_dataset, tmp_path, Task(3, "b"), pace, files)
    message = str(refused.value)
    assert message.startswith("step 2: loss nan, gradient norm nan, expected finite numbers; its ")
    assert "process" not in message
    (only,) = read_csv(tmp_path / "train_log.csv")
    named = message.partition("its clips: ")[2].partition(". The last")[0].split(", ")
    assert len(named) == 2
    assert not set(named) & set(only["clips"].split())
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["step-0000001"]
    assert not (tmp_path / "w").exists()
