"""What happens beside the steps of a run: the validation before the first, rates that change."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.export.write import METADATA_KEYS, export_metadata
from gc25d.files import digest_file
from gc25d.methods.base import TrainingMethod
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.start import model_config, starting_model
from gc25d.records import read_csv, read_json, read_jsonl, to_json
from gc25d.settings.steps import TrainStep
from gc25d.steps import train_arguments
from gc25d.train import segment
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment
from gc25d.train.validate import Validation, validation_batches
from small_step import small_step

WARMUP, LR = 4, 3e-3
SETTINGS = small_step(
    train={"global_batch": 2, "warmup_steps": WARMUP, "cpu_threads": 1, "lr": LR},
    validation={"n": 3, "timesteps": [200, 800]},
)


def train(
    data: Path,
    run: Path,
    until: int,
    rates: tuple[float, float] | None = None,
    settings: TrainStep = SETTINGS,
    save_every: int = 2,
) -> str:
    folder = run / f"step-{until}"
    files = SegmentFiles(folder / "w.safetensors", folder / "p.safetensors", folder / "done.json")
    pace = Pace(2, save_every, 100, 1, 0, rates=rates)
    train_segment(settings, data, run, Task(until, "b"), pace, files)
    return digest_file(files.weights)


def changed(**train_settings: Any) -> TrainStep:
    train = SETTINGS.train.model_copy(update=train_settings)
    return SETTINGS.model_copy(update={"train": train})


def validations(run: Path) -> list[int]:
    return [int(row["step"]) for row in read_csv(run / "val_log.csv")]


# The validation before the first step


def test_the_starting_weights_are_validated_once(small_dataset: Path, tmp_path: Path) -> None:
    train(small_dataset, tmp_path, 2)
    assert validations(tmp_path) == [0, 0, 2, 2]
    clips = ClipDataset(small_dataset, "val")
    batches = validation_batches(clips, 3, 2, torch.device("cpu"))
    fixed = Validation(batches, clips.table, [200, 800], 0, lambda item: [item])
    start = starting_model(model_config(SETTINGS), SETTINGS.train.seed, "", "")
    logged = read_csv(tmp_path / "val_log.csv")[:2]
    for row, expected in zip(logged, fixed.run(start, 0), strict=True):
        assert {name: float(value) for name, value in row.items()} == pytest.approx(expected)
    train(small_dataset, tmp_path, 3)
    assert validations(tmp_path) == [0, 0, 2, 2, 3, 3]
    # A resume without the log has no starting weights to validate any more.
    (tmp_path / "val_log.csv").unlink()
    train(small_dataset, tmp_path, 4)
    assert validations(tmp_path) == [4, 4]


def test_it_changes_no_bit_of_the_training(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = train(small_dataset, tmp_path / "validated", 3)
    monkeypatch.setattr(segment, "is_due", lambda start, folders, timesteps: False)
    assert train(small_dataset, tmp_path / "not", 3) == validated
    assert validations(tmp_path / "not") == [3, 3]


def test_killed_before_the_first_state_it_is_not_done_again(
    small_dataset: Path, tmp_path: Path
) -> None:
    def killed() -> None:
        shutil.rmtree(tmp_path / "states")
        shutil.rmtree(tmp_path / "step-1")
        history = tmp_path / "history.jsonl"
        history.write_text(history.read_text().splitlines()[0] + "\n")

    train(small_dataset, tmp_path, 1)
    killed()
    log = tmp_path / "val_log.csv"
    head, first, second, *_ = log.read_text().splitlines()
    log.write_text(f"{head}\n{first[:-1]}9\n{second}\n")  # a figure that no validation gives
    train(small_dataset, tmp_path, 1)
    assert log.read_text().splitlines()[1] == f"{first[:-1]}9"
    assert validations(tmp_path) == [0, 0, 1, 1]
    log.write_text(f"{head}\n{first}\n{second[:20]}")  # killed while it was written
    killed()
    train(small_dataset, tmp_path, 1)
    assert log.read_text().splitlines()[1:3] == [first, second]
    assert validations(tmp_path) == [0, 0, 1, 1]


def test_a_method_says_what_else_to_log(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def begin(self: TrainingMethod, iteration: int) -> Mapping[str, torch.Tensor]:
        asked.append(iteration)
        return {"win_rate": torch.tensor(0.25 * len(asked))}

    monkeypatch.setattr(FinetuneMethod, "on_validation_begin", begin)
    train(small_dataset, tmp_path, 2)
    assert asked == [-1, 1]
    rows = read_csv(tmp_path / "val_log.csv")
    assert [row["win_rate"] for row in rows] == ["0.25", "0.25", "0.5", "0.5"]


# Learning rates that change under a run (train.reset_lr_on_resume)


def rates(run: Path, name: str = "lr") -> list[float]:
    return [float(row[name]) for row in read_csv(run / "train_log.csv")]


def expected(step: int, lr: float) -> float:
    return lr * min(step / WARMUP, 1.0)


def test_new_rates_hold_from_the_resume_on(small_dataset: Path, tmp_path: Path) -> None:
    """The position in the warm-up stays; what was trained before stays what it was."""
    train(small_dataset, tmp_path, 2)
    train(small_dataset, tmp_path, 6, (LR / 10, LR / 5))
    by_hand = [LR, LR, *[LR / 10] * 4]
    assert rates(tmp_path) == pytest.approx([expected(i + 1, lr) for i, lr in enumerate(by_hand)])
    cond = [3e-3, 3e-3, *[LR / 5] * 4]
    assert rates(tmp_path, "cond_lr") == pytest.approx(
        [expected(i + 1, lr) for i, lr in enumerate(cond)]
    )
    change = {"step": 3, "lr": LR / 10, "cond_lr": LR / 5}
    assert read_json(tmp_path / "step-6/done.json")["lr_changes"] == [change]
    assert "lr_changes" not in read_json(tmp_path / "step-2/done.json")
    starts = [row for row in read_jsonl(tmp_path / "history.jsonl") if "lr" in row]
    assert [(row["step"], row["lr"]) for row in starts] == [(0, LR), (2, LR / 10)]
    with pytest.raises(UserError, match=r"from step 3 on lr is 0\.0003 .*reset_lr_on_resume"):
        train(small_dataset, tmp_path, 7)
    train(small_dataset, tmp_path, 7, (LR, 3e-3))
    assert rates(tmp_path)[-1] == LR
    assert [c["step"] for c in read_json(tmp_path / "step-7/done.json")["lr_changes"]] == [3, 7]


def test_a_run_whose_rates_changed_resumes_exactly(small_dataset: Path, tmp_path: Path) -> None:
    asked = (LR / 10, LR / 5)
    killed, kept = tmp_path / "killed", tmp_path / "kept"
    train(small_dataset, killed, 2)
    shutil.copytree(killed / "states", kept)
    train(small_dataset, killed, 4)
    shutil.copytree(killed, tmp_path / "whole")
    whole = train(small_dataset, tmp_path / "whole", 7, asked)
    assert whole != train(small_dataset, tmp_path / "plain", 7)
    train(small_dataset, killed, 5, asked)
    assert train(small_dataset, killed, 7, asked) == whole
    # All states from the change on are lost: steps 3 and 4 are trained with the rates of then.
    shutil.rmtree(killed / "states")
    shutil.copytree(kept, killed / "states")
    for step in (4, 5, 7):
        shutil.rmtree(killed / f"step-{step}")
    assert train(small_dataset, killed, 7, asked) == whole
    assert rates(killed) == rates(tmp_path / "whole")


def test_a_step_behind_the_chain_has_the_rates_of_then(small_dataset: Path, tmp_path: Path) -> None:
    train(small_dataset, tmp_path, 4)
    train(small_dataset, tmp_path, 6, (LR / 10, LR / 10))
    asked_for_what_comes = (LR / 7, LR / 7)
    assert train(small_dataset, tmp_path, 3, asked_for_what_comes) == train(
        small_dataset, tmp_path / "fresh", 3
    )


def test_rates_come_from_the_command_line() -> None:
    required = [f"--{name}=x" for name in train_arguments.PATHS]
    required += [f"--{n}=1" for n in (*train_arguments.NUMBERS, *train_arguments.PLACES)]
    parser = train_arguments.parser("")
    for given, asked in (
        ([], None),
        (["--lr", "3e-05", "--cond-lr", "0.0001"], (3e-5, 1e-4)),
    ):
        arguments = parser.parse_args([*required, "--engine=plain", "--log=x", *given])
        assert train_arguments.rates(arguments) == asked


def test_an_export_tells_of_changed_rates() -> None:
    told = {
        **{"step": 6, "resumed_from": "step-2", "resumed_step": 2},
        **{"dataset": "d", "data_root": "data"},
        **{"data_fingerprint": "f", "tensors_sha256": "t"},
    }
    plain = export_metadata(SETTINGS, **told)
    assert set(plain) == set(METADATA_KEYS)
    change = {"step": 3, "lr": 3e-4, "cond_lr": 6e-4}
    metadata = export_metadata(SETTINGS, **told, lr_changes=[change])
    assert metadata == {**plain, "lr_changes": to_json([change], indent=None)}
    assert metadata["lr"] == str(LR)


# Master weights below float32


@pytest.fixture
def fresh_accelerator() -> Iterator[None]:
    """accelerate keeps one precision for a whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerator")
def test_bf16_masters_train_and_resume_exactly(small_dataset: Path, tmp_path: Path) -> None:
    """With a moving average, which is fp32."""
    low = changed(master_weights="bf16", precision="bf16", ema=0.5)
    whole = train(small_dataset, tmp_path / "whole", 4, settings=low)
    fp32 = train(small_dataset, tmp_path / "fp32", 4, settings=changed(precision="bf16"))
    assert whole != fp32
    train(small_dataset, tmp_path / "parts", 2, settings=low)
    assert train(small_dataset, tmp_path / "parts", 4, settings=low) == whole
    means = [digest_file(tmp_path / run / "step-4/ema.safetensors") for run in ("whole", "parts")]
    assert means[0] == means[1]
    losses = [float(row["loss"]) for row in read_csv(tmp_path / "whole/train_log.csv")]
    usual = [float(row["loss"]) for row in read_csv(tmp_path / "fp32/train_log.csv")]
    assert losses == pytest.approx(usual, rel=0.05)
