"""Each method through the real trainer: twenty steps, and the same stopped half-way."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.methods.ode import paths as ode_paths
from gc25d.records import read_csv, read_json, write_json
from gc25d.sampling import euler
from gc25d.settings.steps import TrainStep, step_json
from gc25d.steps import build_ode_cache
from gc25d.train.outputs.logs import TRAIN_COLUMNS
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment
from small_step import small_step

CELLS = (("wan_causal", "dfsft"), ("wan", "dmd2"), ("wan_causal", "self_forcing"), ("wan", "kd"))
STEPS, STOP = 20, 9


def settings_of(model: str, method: str, cache: Path) -> TrainStep:
    train = {
        "method": method,
        "global_batch": 1,
        "warmup_steps": 12,
        "cpu_threads": 1,
        "lr": 1e-3,
        "cond_lr": 1e-3,
        "distill": {
            "denoising_steps": 2,
            "generator_update_interval": 2,
            "critic_lr": 1e-3,
        },
        "kd": {"cache": str(cache), "teacher_steps": 2},
    }
    off = {"text_dropout": 0, "cond_dropout": 0, "mask": {"p": 0}} if method == "kd" else {}
    return small_step(
        samples=off,
        model={"name": model, "chunk_frames": 2},
        train=train,
        validation={"n": 1, "timesteps": [500]},
    )


def train(settings: TrainStep, data: Path, run: Path, until: int) -> str:
    folder = run / f"step-{until}"
    files = SegmentFiles(
        folder / "weights.safetensors", folder / "probe.safetensors", folder / "done.json"
    )
    pace = Pace(micro_batch=1, save_every=STOP, validate_every=STEPS, log_every=STEPS, workers=0)
    train_segment(settings, data, run, Task(until, "b"), pace, files)
    return digest_file(files.weights)


def build_cache(settings: TrainStep, data: Path, folder: Path) -> None:
    write_json(folder / "settings.json", step_json(settings))
    settings_file = folder / "settings.json"
    build_ode_cache.main(Namespace(settings=settings_file, data=data, reads=[], batch=4, gpus=0))


@pytest.mark.parametrize(("model", "method"), CELLS)
def test_a_run_stopped_half_way_goes_on_exactly(
    small_dataset: Path, tmp_path: Path, model: str, method: str
) -> None:
    settings = settings_of(model, method, tmp_path / "ode_paths")
    if method == "kd":
        with pytest.raises(UserError, match="COMPLETE: not found"):
            train(settings, small_dataset, tmp_path / "early", 1)
        build_cache(settings, small_dataset, tmp_path)
    whole = train(settings, small_dataset, tmp_path / "whole", STEPS)
    first = train(settings, small_dataset, tmp_path / "parts", STOP)
    assert first != whole
    assert train(settings, small_dataset, tmp_path / "parts", STEPS) == whole
    rows = [read_csv(tmp_path / run / "train_log.csv") for run in ("whole", "parts")]
    names = ("step", "clips", "loss", "mse", "timestep", "lr", "grad_norm")
    own = ("critic_loss", "generator_loss") if method in ("dmd2", "self_forcing") else ()
    assert tuple(rows[0][0]) == (*TRAIN_COLUMNS, *own)
    logged = [[[row[name] for name in (*names, *own)] for row in of_run] for of_run in rows]
    assert logged[0] == logged[1]
    assert len(logged[0]) == STEPS
    if own:  # the student learns at every second iteration, the first among them
        assert [row["generator_loss"] != "" for row in rows[0]] == [True, False] * (STEPS // 2)
        parts = [float(row["generator_loss"] or 0) + float(row["critic_loss"]) for row in rows[0]]
        assert parts == pytest.approx([float(row["loss"]) for row in rows[0]], rel=1e-6)
    # Warm-up takes 12 updates; a distilled student has had ten when step 20 begins.
    rate = 11 / 12 if method in ("dmd2", "self_forcing") else 1
    assert float(rows[0][-1]["lr"]) == pytest.approx(1e-3 * rate)


def launched_as(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    """As the launcher places a process; the parent of this one is taken for it."""
    monkeypatch.setenv("GC25D_STARTED_BY", str(os.getppid()))
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(f"LOCAL_{name}", value)


def test_all_paths_are_built_whatever_the_environment_says(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    build_cache(settings_of("wan", "kd", tmp_path / "ode_paths"), small_dataset, tmp_path)
    assert read_json(tmp_path / "ode_paths/COMPLETE")["clips"] == 10
    assert len([*(tmp_path / "ode_paths/paths").iterdir()]) == 10


def test_paths_are_built_once_and_by_shares(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("wan", "kd", tmp_path / "ode_paths")
    for rank in ("0", "1"):
        launched_as(monkeypatch, rank, "2")
        build_cache(settings, small_dataset, tmp_path)
        made = sorted((tmp_path / "ode_paths/paths").iterdir())
        assert (tmp_path / "ode_paths/COMPLETE").exists() == (rank == "1")
        assert len(made) == (5 if rank == "0" else 10)
    digests = {path.name: digest_file(path) for path in made}
    made[3].unlink()
    launched_as(monkeypatch, "0", "1")
    build_cache(settings, small_dataset, tmp_path)
    again = {path.name: digest_file(path) for path in made}
    assert again == digests
    assert read_json(tmp_path / "ode_paths/COMPLETE")["clips"] == 10
    other = settings.model_copy(update={"train": settings.train.model_copy(update={"seed": 1})})
    with pytest.raises(UserError, match="made with seed 0, this run needs 1"):
        build_cache(other, small_dataset, tmp_path)


def test_a_path_that_is_not_finite_is_an_error_that_names_the_clip(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowing(*given: Any) -> torch.Tensor:
        paths = euler.solve(*given)
        paths[1, 2, 0] = torch.inf  # of the second clip, a channel of the last point
        return paths

    monkeypatch.setattr(ode_paths, "solve", overflowing)
    settings = settings_of("wan", "kd", tmp_path / "ode_paths")
    # [3, 48, 3, 4, 4] = 6,912 values, of which a channel of a point has 3 · 4 · 4
    said = "clip castle__run-000__000009: the teacher's path: 48 of 6912 values"
    with pytest.raises(UserError, match=said):
        build_cache(settings, small_dataset, tmp_path)
    written = {path.name for path in (tmp_path / "ode_paths/paths").iterdir()}
    assert written == {"000000.safetensors"}
