"""A run is bound to the content of the files that its settings name, not to their places."""

import os
import shutil
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gc25d import plan
from gc25d.binding import RUN_RECORD, fits_binding, settings_digest
from gc25d.contents import content_digests
from gc25d.errors import UserError
from gc25d.records import digest_json, read_json, write_json
from gc25d.step_settings import (
    EvalStep,
    PrepStep,
    RegressionStep,
    TextStep,
    TrainStep,
    load_step,
    step_json,
    step_settings,
)
from gc25d.steps import bind_run

USED = {
    "prep": {
        "codec": "wan_vae",
        "codec_dir": "vae",
        "text": {"encoder": "umt5", "dir": "text"},
    },
    "train": {"method": "dmd2", "teacher": {"weights": "teacher.safetensors"}},
    "model": {"init_dir": "base"},
    "regression": {"init_from": "base"},
}
FILES = (
    *("vae/config.json", "vae/diffusion_pytorch_model.safetensors"),
    *("text/config.json", "text/model.safetensors", "text/tokenizer.json"),
    *("base/w.safetensors", "teacher.safetensors"),
)
SETTINGS = Path("train/settings.json")
BINDING = Path("train/binding.json")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name)
    write_json(Path("READY"), {"fingerprint": "f"})


def parse(**changes: dict) -> None:
    """What the rules do first."""
    config = {key: {**value, **changes.get(key, {})} for key, value in USED.items()}
    plan.write_settings_files(plan.load_settings(config))


def bind() -> dict[str, Any]:
    """The rule bind_run."""
    bind_run.main(
        Namespace(settings=SETTINGS, ready=Path("READY"), dataset="gc25d_v10", out=BINDING)
    )
    binding: dict[str, Any] = read_json(BINDING)
    assert fits_binding(read_json(SETTINGS), binding["settings_sha256"])
    return binding


def refused(**changes: dict) -> str:
    with pytest.raises(UserError) as error:
        parse(**changes)
    return str(error.value)


def made_before_contents(**changes: dict) -> None:
    """The files of a run and its data that were begun without contents."""
    config = {key: {**value, **changes.get(key, {})} for key, value in USED.items()}
    settings = plan.load_settings(config)
    runs = tuple(plan.raw_runs(settings))
    for name, step in step_settings(settings, runs).items():
        value = step_json(step)
        assert "contents" not in value
        if name == "regression":
            value["code"] = plan.code_digest()
        write_json(plan.settings_files(settings)[name], value)
    began = read_json(SETTINGS)
    write_json(RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": began})
    write_json(
        BINDING,
        {
            "dataset": "gc25d_v10",
            "data_fingerprint": "f",
            "settings_sha256": digest_json(began),
        },
    )


def times() -> dict[Path, int]:
    """When each settings file and the binding were written, ns."""
    kept = ("raw", "data", "train", "eval", "regression")
    return {
        path: path.stat().st_mtime_ns
        for folder in kept
        for path in Path(folder).rglob("*.json")
        if path != RUN_RECORD
    }


def aged() -> dict[Path, int]:
    """The same, after all of them were set back by an hour."""
    then = time.time() - 3600
    for path in times():
        os.utime(path, (then, then))
    return times()


@pytest.mark.parametrize(
    ("file", "setting", "place"),
    [
        ("base/w.safetensors", "model.init_dir", "base"),
        ("teacher.safetensors", "train.teacher.weights", "teacher.safetensors"),
    ],
)
def test_a_replaced_file_is_refused_like_a_changed_setting(
    file: str, setting: str, place: str
) -> None:
    parse()
    bind()
    before = aged()
    old = Path(file).read_text()
    Path(file).write_text("x" * len(old))
    said = refused()
    assert f"{setting} is '{place}' (content " in said
    assert f"the run was started with '{place}' (content " in said
    assert "gc25d.steps.restart" in said
    assert said.count(" is '") == 1
    assert times() == before
    Path(file).write_text(old)
    parse()
    assert times() == before


def test_a_replaced_checkpoint_of_a_warm_start_is_refused() -> None:
    start = {"init_dir": "", "init_ckpt": "teacher.safetensors"}
    teacher = {"teacher": {"weights": "base"}}
    parse(model=start, train=teacher)
    bind()
    Path("teacher.safetensors").write_text("another")
    assert "model.init_ckpt is 'teacher.safetensors' (content " in refused(
        model=start, train=teacher
    )


def test_binding_holds_against_a_file_replaced_between_start_and_binding() -> None:
    parse()
    bind()
    changed = read_json(SETTINGS)
    changed["contents"]["model.init_dir"] = "0" * 64
    write_json(SETTINGS, changed)
    with pytest.raises(UserError, match=r"model.init_dir is 'base' \(content 000000000000\)"):
        bind()


def test_folders_may_move_and_nothing_is_made_again() -> None:
    parse()
    binding, before = bind(), aged()
    for name in ("vae", "text", "base", "teacher.safetensors"):
        Path(name).rename(f"moved-{name}")
    moved = {
        "prep": {"codec_dir": "moved-vae", "text": {"encoder": "umt5", "dir": "moved-text"}},
        "train": {"teacher": {"weights": "moved-teacher.safetensors"}},
        "model": {"init_dir": "moved-base"},
        "regression": {"init_from": "moved-base"},
    }
    parse(**moved)
    assert times() == before
    train = load_step(SETTINGS, TrainStep)
    assert (train.model.init_dir, train.train.teacher.weights) == (
        "moved-base",
        "moved-teacher.safetensors",
    )
    data = Path("data/gc25d_v10/settings")
    assert load_step(data / "prep.json", PrepStep).codec_dir == "moved-vae"
    assert load_step(data / "text.json", TextStep).text.dir == "moved-text"
    assert load_step(Path("eval/settings.json"), EvalStep).codec_dir == "moved-vae"
    regression = load_step(Path("regression/settings.json"), RegressionStep).regression
    assert regression.init_from == "moved-base"
    assert bind() == binding  # by which the run's states are known
    Path("moved-base/w.safetensors").write_text("another")
    assert "model.init_dir is 'moved-base' (content " in refused(**moved)


def test_another_place_with_other_content_is_refused_with_both() -> None:
    parse()
    bind()
    shutil.copytree("base", "other")
    Path("other/w.safetensors").write_text("another")
    said = refused(model={"init_dir": "other"})
    assert "model.init_dir is 'other' (content " in said
    assert "the run was started with 'base' (content " in said
    assert "model.init_dir is '', the run was started with 'base'" in refused(
        model={"init_dir": ""}
    )


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("vae/config.json", {"data/gc25d_v10/settings/prep.json", "eval/settings.json"}),
        ("text/tokenizer.json", {"data/gc25d_v10/settings/text.json"}),
        ("base/w.safetensors", {"train/settings.json", "regression/settings.json"}),
    ],
)
def test_a_replaced_file_reruns_the_steps_that_read_it(file: str, changed: set[str]) -> None:
    """Without a run that it would alter."""
    parse()
    before = aged()
    Path(file).write_text("another")
    parse()
    assert {str(path) for path, time in times().items() if before[path] != time} == changed


def test_a_run_from_before_goes_on_and_is_bound_from_then_on() -> None:
    made_before_contents()
    binding, before = read_json(BINDING), aged()
    parse()
    assert times() == before
    assert read_json(RUN_RECORD)["contents"].keys() == {"model.init_dir", "train.teacher.weights"}
    assert bind() == binding
    settings = Path("data/gc25d_v10/settings/prep.json")
    assert list(read_json(settings)["contents"]) == ["codec_dir"]
    Path("base/w.safetensors").write_text("another")
    assert "model.init_dir is 'base' (content " in refused()
    Path("base/w.safetensors").write_text("base/w.safetensors")
    parse()
    assert bind() == binding


def test_a_run_from_before_stays_bound_to_its_places() -> None:
    """Its states know the digest of its paths."""
    made_before_contents()
    parse()
    Path("base").rename("moved")
    moved = {"model": {"init_dir": "moved"}, "regression": {"init_from": "moved"}}
    said = refused(**moved)
    assert "model.init_dir is 'moved' (content " in said
    assert "the run was started with 'base' (content " in said


def test_settings_of_a_run_from_before_are_still_compared() -> None:
    made_before_contents()
    said = refused(train={"lr": 0.5}, model={"init_dir": ""})
    assert "train.lr is 0.5, the run was started with 0.003" in said
    assert "model.init_dir is '', the run was started with 'base'" in said


def test_settings_without_such_files_are_what_they_were() -> None:
    settings = plan.load_settings({})
    assert content_digests(settings) == {}
    for name, step in step_settings(settings, ("a__b",), {}).items():
        value = step_json(step)
        assert "contents" not in value, name
        assert settings_digest(value) == digest_json(value)


def test_data_that_may_only_be_read_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made_before_contents()
    folder = Path("data/gc25d_v10/settings")
    held = {path: path.read_text() for path in folder.iterdir()}
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder)
    parse()
    assert {path: path.read_text() for path in folder.iterdir()} == held
    assert "contents" in read_json(SETTINGS)
