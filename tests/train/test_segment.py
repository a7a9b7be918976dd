"""The training chain on a real data set: exact resume, segments, side steps, refusals."""

import shutil
from pathlib import Path

import pytest

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.model.start import model_config, starting_model
from gc25d.records import read_csv, read_json, read_jsonl
from gc25d.settings.steps import TrainStep
from gc25d.tensors import read_tensors
from gc25d.train.history.events import record_event
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment
from small_step import small_step

SETTINGS = small_step(
    train={"global_batch": 4, "grad_accum": 2, "warmup_steps": 2, "cpu_threads": 1},
    validation={"n": 2, "timesteps": [500]},
)
SAME = ("clips", "epoch", "text_drop", "cond_drop", "mask_frac", "timestep", "loss", "mse")
SAME += ("grad_norm", "lr", "sem_rms")
# How far other micro-batches may lead, relative to how far training led from the start.
ROUNDING = 2e-3


def pace(**changes: int) -> Pace:
    usual = {"micro_batch": 2, "save_every": 2, "validate_every": 2, "log_every": 1, "workers": 0}
    return Pace(**{**usual, **changes})


def train(
    data: Path,
    run: Path,
    until: int,
    *,
    settings: TrainStep = SETTINGS,
    binding: str = "b",
    **changes: int,
) -> str:
    folder = run / f"step-{until}"
    files = SegmentFiles(
        folder / "weights.safetensors", folder / "probe.safetensors", folder / "done.json"
    )
    train_segment(settings, data, run, Task(until, binding), pace(**changes), files)
    return digest_file(files.weights)


def rows(run: Path) -> list[dict[str, str]]:
    return [{name: row[name] for name in SAME} for row in read_csv(run / "train_log.csv")]


@pytest.fixture(scope="module")
def whole(small_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven uninterrupted steps: 10 clips, 5 rounds of 2, so epochs of 3 steps (4, 4, 2)."""
    run = tmp_path_factory.mktemp("whole")
    train(small_dataset, run, 7)
    return run


def test_steps_take_the_samples_that_arithmetic_says(whole: Path, small_dataset: Path) -> None:
    logged = read_csv(whole / "train_log.csv")
    assert [int(row["step"]) for row in logged] == [1, 2, 3, 4, 5, 6, 7]
    assert [len(row["clips"].split()) for row in logged] == [4, 4, 2, 4, 4, 2, 4]
    assert [row["epoch"] for row in logged] == ["0", "0", "0", "1", "1", "1", "2"]
    clips = {row.clip_id for row in ClipDataset(small_dataset, "train").rows}
    first_epoch = " ".join(row["clips"] for row in logged[:3]).split()
    second_epoch = " ".join(row["clips"] for row in logged[3:6]).split()
    assert set(first_epoch) == set(second_epoch) == clips
    assert first_epoch != second_epoch
    done = read_json(whole / "step-7/done.json")
    assert (done["epoch"], done["step_in_epoch"], done["steps_per_epoch"]) == (2, 1, 3)


# 2: in mid-epoch; 3: after an epoch's last micro-batch; 5 then 6: twice.
@pytest.mark.parametrize("stops", [(2,), (3,), (5, 6)])
def test_segments_give_the_weights_and_rows_of_one_run(
    whole: Path, small_dataset: Path, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    for stop in stops:
        train(small_dataset, tmp_path, stop)
    assert train(small_dataset, tmp_path, 7) == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path) == rows(whole)


def test_a_kill_between_saves_changes_nothing(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path, 5)
    # As a kill at step 5 leaves it: the last state is step 4's, its rows go further, the last cut.
    shutil.rmtree(tmp_path / "states/step-0000005")
    shutil.rmtree(tmp_path / "step-5")
    with (tmp_path / "train_log.csv").open("a") as log:
        log.write("6,0.1")
    assert train(small_dataset, tmp_path, 7) == digest_file(whole / "step-7/weights.safetensors")
    assert rows(tmp_path) == rows(whole)
    validated = [int(row["step"]) for row in read_csv(tmp_path / "val_log.csv")]
    assert validated == [0, 2, 4, 6, 7]


def test_workers_and_log_settings_change_nothing(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    digest = train(small_dataset, tmp_path, 7, workers=2, log_every=3, save_every=3)
    assert digest == digest_file(whole / "step-7/weights.safetensors")


def test_a_step_behind_the_chain_leaves_the_chain_alone(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = {p.relative_to(run): digest_file(p) for p in run.rglob("*") if p.is_file()}
    aside = train(small_dataset, run, 3)
    fresh = train(small_dataset, tmp_path / "fresh", 3)
    assert aside == fresh
    after = {p.relative_to(run): digest_file(p) for p in run.rglob("*") if p.is_file()}
    assert {path: after.get(path) for path in before} == before


def test_damaged_states_are_passed_over_and_never_mean_a_new_start(
    whole: Path, small_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (newest,) = (run / "states/step-0000007").glob("*.safetensors")
    newest.write_bytes(newest.read_bytes()[:-10])
    digest = train(small_dataset, run, 8)
    assert f"step-0000007 is damaged ({newest.name} has" in caplog.text
    assert digest == train(small_dataset, tmp_path / "fresh", 8)
    for manifest in (run / "states").glob("*/manifest.json"):
        manifest.unlink()
    kept = digest_file(run / "train_log.csv")
    with pytest.raises(UserError, match="none of the 2 states up to step 9 is whole"):
        train(small_dataset, run, 9)
    assert digest_file(run / "train_log.csv") == kept


def test_smaller_micro_batches_change_nothing_but_rounding(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path, 7, micro_batch=1)
    drawn = ("step", "epoch", "clips", "text_drop", "cond_drop", "mask_frac")
    for one, two in zip(
        read_csv(tmp_path / "train_log.csv"), read_csv(whole / "train_log.csv"), strict=True
    ):
        assert [one[name] for name in drawn] == [two[name] for name in drawn]
        # A mean of the same float32 timesteps, summed in other groups.
        assert float(one["timestep"]) == pytest.approx(float(two["timestep"]), rel=1e-6)
        assert float(one["loss"]) == pytest.approx(float(two["loss"]), rel=1e-4)
    weights = read_tensors(whole / "step-7/weights.safetensors")
    start = starting_model(model_config(SETTINGS), SETTINGS.train.seed, "", "").state_dict()
    moved = off = 0.0
    for name, tensor in read_tensors(tmp_path / "step-7/weights.safetensors").items():
        off += float((tensor.double() - weights[name].double()).square().sum())
        moved += float((weights[name].double() - start[name].double()).square().sum())
    assert (off / moved) ** 0.5 < ROUNDING


def test_history_tells_what_happened(small_dataset: Path, tmp_path: Path) -> None:
    def told() -> list[tuple[str, bool | None]]:
        return [(e["event"], e.get("crashed")) for e in read_jsonl(tmp_path / "history.jsonl")]

    train(small_dataset, tmp_path, 1)
    first = [("start", False), ("finish", None)]
    assert told() == first
    train(small_dataset, tmp_path, 2)
    second = [("resume", False), ("finish", None)]
    assert told() == first + second
    record_event(tmp_path, "start", step=2, until=3, crashed=False)
    train(small_dataset, tmp_path, 3)
    third = [("start", False), ("resume", True), ("finish", None)]
    assert told() == first + second + third


def test_logged_norm_is_before_clipping(whole: Path, small_dataset: Path, tmp_path: Path) -> None:
    limit = 1e-3
    clipped = SETTINGS.train.model_copy(update={"grad_clip": limit})
    settings = SETTINGS.model_copy(update={"train": clipped})
    digest = train(small_dataset, tmp_path, 2, settings=settings)
    assert digest != train(small_dataset, tmp_path / "usual", 2)
    clipped_rows, usual_rows = rows(tmp_path), rows(whole)[:2]
    assert all(float(row["grad_norm"]) > limit for row in clipped_rows)
    assert clipped_rows[0] == usual_rows[0]
    assert clipped_rows[1]["loss"] != usual_rows[1]["loss"]


def test_a_state_of_another_binding_is_refused(small_dataset: Path, tmp_path: Path) -> None:
    train(small_dataset, tmp_path, 1)
    with pytest.raises(UserError, match="step-0000001 was trained with other settings or data"):
        train(small_dataset, tmp_path, 2, binding="another")


def test_means_and_history_do_not_break_on_a_crash(
    whole: Path, small_dataset: Path, tmp_path: Path
) -> None:
    train(small_dataset, tmp_path, 5)
    shutil.rmtree(tmp_path / "states/step-0000005")  # a kill at step 5 leaves the state of step 4
    with (tmp_path / "history.jsonl").open("a") as history:
        history.write('{"event": "sta')
    train(small_dataset, tmp_path, 7)
    crashed, alone = (read_json(run / "step-7/done.json") for run in (tmp_path, whole))
    assert crashed["means"]["loss"] == alone["means"]["loss"]
    assert crashed["resumed_step"] == alone["resumed_step"] == 0
    train(small_dataset, tmp_path, 9)
    last = [float(row["loss"]) for row in read_csv(tmp_path / "train_log.csv")[7:]]
    segment = read_json(tmp_path / "step-9/done.json")
    assert segment["means"]["loss"] == pytest.approx(sum(last) / 2, rel=1e-12)
    assert segment["resumed_step"] == 7
