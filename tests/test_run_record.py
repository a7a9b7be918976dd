"""A run whose record is gone or damaged is restored or refused, never bound anew."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from gc25d.errors import UserError
from gc25d.records import read_json, write_json
from gc25d.settings.loading import load_settings
from gc25d.steps import bind_run
from gc25d.workflow import settings_files
from gc25d.workflow.binding import RUN_RECORD

SETTINGS = Path("train/settings.json")
BINDING = Path("train/binding.json")
ASKED = Path("asked.json")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("READY"), {"fingerprint": "f"})


def parse(**changes: dict[str, Any]) -> None:
    """What the rules do: check, and tell the jobs what is asked for."""
    contents = settings_files.settings_contents(load_settings(changes))
    write_json(ASKED, contents["train"])


def bind() -> None:
    """The rules write_settings and bind_run."""
    write_json(SETTINGS, read_json(ASKED))
    bind_run.main(
        Namespace(settings=SETTINGS, ready=Path("READY"), dataset="gc25d_v10", out=BINDING)
    )


def refused(**changes: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        parse(**changes)
    return str(error.value)


def begun() -> dict[str, Any]:
    """A bound run, whose record is gone; the record."""
    parse()
    bind()
    record: dict[str, Any] = read_json(RUN_RECORD)
    RUN_RECORD.unlink()
    return record


@pytest.mark.parametrize("also_gone", [(), (SETTINGS,)])
def test_a_record_that_is_gone_is_restored_from_the_binding(also_gone: tuple[Path, ...]) -> None:
    record = begun()
    for path in also_gone:
        path.unlink()
    parse()
    assert not RUN_RECORD.exists()  # looking writes nothing
    said: list[str] = []
    settings_files.keep_record({"train": ASKED}, said.append)
    assert read_json(RUN_RECORD) == record
    assert said == ["train/run.json was gone: restored from train/binding.json"]
    settings_files.keep_record({"train": ASKED}, said.append)
    assert len(said) == 1


def test_other_settings_or_data_are_refused_without_the_record_too() -> None:
    record = begun()
    assert "train.lr is 0.5, the run was started with 0.003" in refused(train={"lr": 0.5})
    write_json(Path("READY"), {"fingerprint": "g"})
    with pytest.raises(UserError, match="fingerprint is g, the run was started with f"):
        bind()
    assert read_json(RUN_RECORD) == record


@pytest.mark.parametrize(
    "left",
    ["binding.json", "step-2/done.json", "states/step-2/record.json", "history.jsonl"],
)
def test_remains_of_an_unknown_run_are_bound_to_nothing(left: str) -> None:
    begun()
    for path in (SETTINGS, BINDING):
        path.unlink()
    write_json(Path("train") / left, {})
    said = refused()
    assert f"train/run.json is gone, and train holds what a run left ({left.split('/')[0]})" in said
    assert "Put train/run.json back" in said
    assert "gc25d.steps.restart --directory" in said
    with pytest.raises(UserError, match="is gone"):
        bind()


def test_empty_folders_are_no_run() -> None:
    for name in ("states", "step-2"):
        (Path("train") / name).mkdir(parents=True)
    parse()
    bind()
    assert RUN_RECORD.exists()


@pytest.mark.parametrize("content", [[], {}, {"settings": []}, 3])
def test_a_record_that_is_none_is_refused_in_one_line(content: object) -> None:
    begun()
    write_json(RUN_RECORD, content)
    assert "train/run.json: is no record of what this run is bound to" in refused()
