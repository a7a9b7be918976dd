"""What the rules ask at parse time."""

from pathlib import Path

import pytest

from gc25d import plan
from gc25d.errors import UserError
from gc25d.records import read_json, write_json
from gc25d.settings import Settings


def settings(**changes: object) -> Settings:
    return plan.load_settings(changes)


def test_captured_runs_are_named_by_scene_and_number() -> None:
    runs = plan.raw_runs(settings(capture={"scenes": ["b", "a"], "runs_per_scene": 2}))
    assert list(runs) == ["a__run-000", "a__run-001", "b__run-000", "b__run-001"]
    assert runs["b__run-001"] == Path("raw/vizdoom/b/run-001")


def test_external_runs_are_found_and_must_be_distinct(tmp_path: Path) -> None:
    config = {"raw_root": str(tmp_path), "capture": {"source": "external"}}
    with pytest.raises(UserError, match="no captures found"):
        plan.raw_runs(plan.load_settings(config))
    for subset in ("day", "night"):
        write_json(tmp_path / subset / "castle" / "r1" / "meta.json", {})
    with pytest.raises(UserError, match="are both run castle__r1"):
        plan.raw_runs(plan.load_settings(config))


def test_chain_and_what_stands_before_a_step() -> None:
    chain = plan.chain_steps(settings(train={"max_steps": 500, "checkpoint_every": 200}))
    assert chain == [200, 400, 500]
    assert [plan.checkpoint_before(step, 200) for step in (1, 200, 201, 400, 401, 500)] == [
        *(0, 0, 200, 200, 400, 400)
    ]


def test_settings_files_are_written_only_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan.write_settings_files(settings())
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(written) == 7
    plan.write_settings_files(settings(train={"log_every": 3, "workers": 1, "max_steps": 9}))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == written
    plan.write_settings_files(settings(prep={"limit": 5}))
    changed = {path for path, time in written.items() if path.stat().st_mtime_ns != time}
    assert changed == {tmp_path / "data/gc25d_v10/settings/index.json"}


def test_a_bound_run_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan.write_settings_files(settings())
    bound = read_json(Path("train/settings.json"))
    write_json(
        plan.RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": bound}
    )
    plan.write_settings_files(settings(train={"max_steps": 5000, "workers": 2}))
    with pytest.raises(UserError) as refused:
        plan.write_settings_files(settings(train={"lr": 0.5}, model={"vocab": "ids"}))
    said = str(refused.value)
    assert "train.lr is 0.5, the run was started with 0.003" in said
    assert "model.vocab is 'ids', the run was started with 'parts'" in said
    assert "--directory" in said
    assert "gc25d.steps.restart" in said
    assert read_json(Path("train/settings.json")) == bound
    plan.write_settings_files(settings())


def test_external_captures_are_never_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(Path("captures/day/castle/r1/meta.json"), {})
    plan.write_settings_files(settings(raw_root="captures", capture={"source": "external"}))
    assert [p.name for p in Path("captures").rglob("*") if p.is_file()] == ["meta.json"]
