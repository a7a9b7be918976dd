"""Captures that do not fit the settings are refused at parse time."""

import os
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.records import write_json
from gc25d.settings.loading import load_settings
from gc25d.workflow.captures import check_captures
from gc25d.workflow.settings_files import settings_contents


def add_run(folder: Path, *lengths: int, source: str = "unreal") -> None:
    write_json(folder / "meta.json", {"source": source})
    for frames in lengths:
        write_json(folder / f"clips_{frames}.json", {})


def parse(**config: object) -> None:
    """What the rules do first, in the current folder."""
    settings_contents(load_settings(config))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("run", "source"),
    [
        ("mine/castle/r1", "unreal"),
        ("day/deathmatch/run-000", "vizdoom"),
        ("vizdoom/castle/r1", "unreal"),
        ("synthetic/synthetic_perspective/run-000", "synthetic"),
    ],
)
def test_games_are_not_captured_into_other_captures(run: str, source: str) -> None:
    add_run(Path("captures") / run, 17, source=source)
    before = sorted(Path().rglob("*"))
    with pytest.raises(UserError) as refused:
        parse(raw_root="captures")
    said = str(refused.value)
    assert f"raw_root captures holds {run}, which is no capture of capture.source vizdoom" in said
    assert "set capture.source: external" in said
    assert sorted(Path().rglob("*")) == before
    run_id = "__".join(run.split("/")[1:])
    add_run(Path("captures/mine/castle/r2"), 17)
    parse(raw_root="captures", capture={"source": "external"}, prep={"val_runs": [run_id]})


def test_own_captures_and_what_is_no_run_are_left_alone() -> None:
    add_run(Path("raw/vizdoom/deathmatch/run-000"), 17, source="vizdoom")
    add_run(Path("raw/vizdoom/basic/run-000"), 17, source="vizdoom")  # of an earlier setting
    Path("raw/vizdoom/deadly_corridor/run-001").mkdir(parents=True)
    Path("raw/vizdoom/deadly_corridor/run-001/meta.json").write_text("cut")
    Path("raw/notes/today/talk").mkdir(parents=True)
    add_run(Path("raw/.trash/castle/r1"))
    parse()


def external(frames: int) -> dict[str, object]:
    return {
        "raw_root": "captures",
        "capture": {"source": "external"},
        "geometry": {"frames": frames},
        "prep": {"val_runs": ["castle__v1"]},
    }


def test_clips_of_another_length_are_refused_with_the_lengths_there_are() -> None:
    add_run(Path("captures/day/castle/r1"), 17, 81)
    add_run(Path("captures/day/castle/v1"), 17)
    with pytest.raises(UserError) as refused:
        parse(**external(33))
    said = str(refused.value)
    assert "geometry.frames is 33, but no training run below raw_root captures" in said
    assert "only clips of 17 and 81 frames" in said
    assert "set geometry.frames to 17 or 81, or cut the runs and write clips_33.json" in said
    with pytest.raises(UserError, match=r"no validation run .* clips_81.json, only clips of 17 "):
        parse(**external(81))
    assert sorted(p.name for p in Path().iterdir()) == ["captures"]
    parse(**external(17))


def test_runs_without_any_clips_are_refused() -> None:
    add_run(Path("captures/day/castle/r1"))
    add_run(Path("captures/day/castle/v1"), 17)
    with pytest.raises(UserError, match=r"has clips_17.json or other clips: cut the runs"):
        parse(**external(17))


def test_one_run_without_its_table_stops_nobody() -> None:
    add_run(Path("captures/day/castle/r1"))
    add_run(Path("captures/day/castle/r2"), 17)
    add_run(Path("captures/day/castle/v1"), 17)
    parse(**external(17))


def test_of_many_captures_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in each split settles the question; so does the first run of somebody else's."""
    folders = [Path(f"captures/day/castle/r{number:04d}") for number in range(300)]
    for folder in folders:
        add_run(folder, 17)
    config = external(17) | {"prep": {"val_runs": ["castle__r0299"]}}
    looked: list[str] = []
    for owner, name in ((Path, "is_file"), (Path, "is_dir"), (os, "listdir"), (os, "scandir")):
        real = getattr(owner, name)

        def spy(*args: object, real: object = real, **options: object) -> object:
            looked.append(str(args[0]))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, spy)
    settings = load_settings(config)
    check_captures(settings, {f"castle__{folder.name}": folder for folder in folders})
    assert 0 < len(looked) < 10
    looked.clear()
    with pytest.raises(UserError, match="holds day/castle/r0000"):
        check_captures(load_settings({"raw_root": "captures"}), {})
    assert 0 < len(looked) < 20
