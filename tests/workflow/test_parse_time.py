"""What the rules ask at parse time."""

import shutil
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.records import read_json, write_json
from gc25d.settings.loading import load_settings
from gc25d.settings.steps import buried_clips, step_json, step_settings
from gc25d.settings.tree import Settings
from gc25d.workflow import settings_files
from gc25d.workflow.binding import RUN_RECORD
from gc25d.workflow.chain import PLACED, checkpoint_before, needed_before, weights_file
from gc25d.workflow.environment import cache_environment
from gc25d.workflow.runs import raw_files, raw_runs, settings_paths


def settings(**changes: object) -> Settings:
    return load_settings(changes)


def write_settings_files(chosen: Settings, parse: Path = Path("parse-time")) -> set[Path]:
    """As the rules do: sources first, then a copy of each that is newer; returns those copied."""
    contents = settings_files.settings_contents(chosen)
    sources = settings_files.write_sources(chosen, contents, parse)
    copied = set()
    for name, source in sources.items():
        path = settings_paths(chosen)[name]
        if not path.exists() or source.stat().st_mtime > path.stat().st_mtime:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
            copied.add(path)
    shutil.rmtree(parse)
    return copied


def test_captured_runs_are_named_by_scene_and_number() -> None:
    runs = raw_runs(settings(capture={"scenes": ["my_way_home", "basic"]}))
    assert list(runs) == [
        f"{scene}__run-00{number}" for scene in ("basic", "my_way_home") for number in range(4)
    ]
    assert runs["basic__run-001"] == Path("raw/vizdoom/basic/run-001")


def test_external_runs_are_found_and_must_be_distinct(tmp_path: Path) -> None:
    config = {"raw_root": str(tmp_path), "capture": {"source": "external"}}
    with pytest.raises(UserError, match="no captures found"):
        raw_runs(load_settings(config))
    for subset in ("day", "night"):
        write_json(tmp_path / subset / "castle" / "r1" / "meta.json", {})
    with pytest.raises(UserError, match="are both run castle__r1"):
        raw_runs(load_settings(config))


def test_what_stands_before_a_step() -> None:
    assert [checkpoint_before(step, 200) for step in (1, 200, 201, 400, 401, 500)] == [
        *(0, 0, 200, 200, 400, 400)
    ]


def test_settings_files_are_written_only_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(written) == 7
    write_settings_files(settings(train={"log_every": 3, "workers": 1, "max_steps": 9}))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == written
    write_settings_files(settings(prep={"limit": 12}))
    changed = {path for path, time in written.items() if path.stat().st_mtime_ns != time}
    assert changed == {tmp_path / "data/gc25d_v10/settings/index.json"}


def test_a_data_set_may_use_the_runs_of_another_prepared_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mini = {"dataset": "mini", "prep": {"runs_of": "full", "limit": 12}}
    write_settings_files(settings(**mini))
    assert (tmp_path / "data/full/settings/prep.json").exists()
    assert {path.name for path in (tmp_path / "data/mini/settings").iterdir()} == {
        "text.json",
        "index.json",
    }
    before = (tmp_path / "data/full/settings/prep.json").read_text()
    other = {"geometry": {"frames": 5}, **mini}
    with pytest.raises(UserError, match=r"runs_of is full, .* geometry.*data/full/settings/prep"):
        write_settings_files(settings(**other))
    assert (tmp_path / "data/full/settings/prep.json").read_text() == before
    write_settings_files(settings(dataset="full", geometry={"frames": 5}))
    write_settings_files(settings(**other))


def test_a_bound_run_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    bound = read_json(Path("train/settings.json"))
    write_json(RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": bound})
    write_settings_files(settings(train={"max_steps": 5000, "workers": 2}))
    with pytest.raises(UserError) as refused:
        write_settings_files(settings(train={"lr": 0.5}, model={"vocab": "ids"}))
    said = str(refused.value)
    assert "train.lr is 0.5, the run was started with 0.003" in said
    assert "model.vocab is 'ids', the run was started with 'parts'" in said
    assert "--directory" in said
    assert "gc25d.steps.restart" in said
    assert read_json(Path("train/settings.json")) == bound
    write_settings_files(settings())


def test_a_run_of_another_training_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own fields may differ too: none of them is the user's to put back."""
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    bound = read_json(Path("train/settings.json"))
    now, then = bound["version"], bound["version"] - 1
    older = {**bound, "version": then, "added": 1}
    write_json(RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": older})
    with pytest.raises(UserError) as refused:
        write_settings_files(settings())
    said = str(refused.value)
    assert f"(version {now} of the step, the run was started with {then})" in said
    assert "Finish the run with the gc25d that it was started with" in said
    assert "added" not in said


def test_rates_may_change_under_a_run_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer gets them as arguments: settings and binding stay, nothing finished reruns."""
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    path = Path("train/settings.json")
    bound, written = read_json(path), path.stat().st_mtime_ns
    write_json(RUN_RECORD, {"dataset": "gc25d_v10", "data_fingerprint": "f", "settings": bound})
    asked = {"lr": 0.5, "cond_lr": 0.25, "reset_lr_on_resume": True}
    with pytest.raises(
        UserError, match=r"Put the old value or file back, or allow it with train\.reset_lr"
    ):
        write_settings_files(settings(train={"lr": 0.5, "cond_lr": 0.25}))
    write_settings_files(settings(train=asked))
    assert read_json(path) == bound
    assert path.stat().st_mtime_ns == written
    with pytest.raises(UserError, match=r"train\.seed is 1, the run was started with 0\. "):
        write_settings_files(settings(train={**asked, "seed": 1}))


def test_external_captures_are_never_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("meta.json", "clips_17.json"):
        write_json(Path("captures/day/castle/r1") / name, {})
    pointed = {"capture": {"source": "external"}, "prep": {"val_runs": ["castle__r1"]}}
    write_settings_files(settings(raw_root="captures", **pointed))
    files = sorted(p.name for p in Path("captures").rglob("*") if p.is_file())
    assert files == ["clips_17.json", "meta.json"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_buried_clips_of_the_file_join_those_listed(tmp_path: Path, encoding: str) -> None:
    listed = tmp_path / "buried.txt"
    text = "b__run-001__000081\n\n# too dark\n  a__run-000__000000  # cut scene\n"
    listed.write_text(text, encoding=encoding)
    prep = {"buried": ["c__run-002__000162", "b__run-001__000081"], "buried_file": str(listed)}
    found = [buried_clips(settings(prep=prep).prep)]
    listed.rename(tmp_path / "elsewhere.txt")
    prep["buried_file"] = str(tmp_path / "elsewhere.txt")
    found.append(buried_clips(settings(prep=prep).prep))
    assert found == [("a__run-000__000000", "b__run-001__000081", "c__run-002__000162")] * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a__run-000__000000\na__run-000", r"line 2: 'a__run-000', expected a clip id"),
        (b"a__run-000__000000 a__run-000__000081", "line 1"),
        (b"\xff\xfe\x00", "not readable"),
        (None, "buried.txt is not readable"),
    ],
)
def test_a_buried_file_that_is_no_list_is_refused(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "buried.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        buried_clips(settings(prep={"buried_file": str(path)}).prep)


def test_clips_to_evaluate_may_stand_in_a_file(tmp_path: Path) -> None:
    """In the file's order, behind those listed; the step's settings name no path."""
    path = tmp_path / "clips.txt"
    path.write_text("# the hard ones\nb__run-003__000081\na__run-003__000000  # fog\n")
    evaluation = {"clips": ["c__run-003__000000"], "clips_file": str(path)}
    asked = step_json(step_settings(settings(evaluation=evaluation), ())["eval"])["evaluation"]
    clips = ["c__run-003__000000", "b__run-003__000081", "a__run-003__000000"]
    assert asked["clips"] == clips
    listed = step_settings(settings(evaluation={"clips": clips}), ())["eval"]
    assert step_json(listed)["evaluation"] == asked


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a__run-000__000000\na__run-000", r"clips_file .*clips.txt, line 2: 'a__run-000'"),
        ("# none\n", "names no clip"),
        (None, "clips.txt is not readable"),
    ],
)
def test_a_file_of_clips_to_evaluate_that_is_no_list_is_refused(
    tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "clips.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=said):
        step_settings(settings(evaluation={"clips_file": str(path)}), ())


def test_the_files_of_a_run_that_is_to_be_captured(tmp_path: Path) -> None:
    names = [path.name for path in raw_files(settings(), tmp_path / "not/there")]
    assert sorted(names) == [
        *("cameras.npz", "clips_17.json", "frames.tar", "meta.json", "skeletons.npz"),
        "stencil.tar",
    ]


def test_the_files_of_somebody_elses_run_are_those_there(tmp_path: Path) -> None:
    """Parts count as the tar; while a file is missing the folder stands for it."""
    external = settings(capture={"source": "external"})
    names = ("frames-000.tar", "frames-001.tar", "stencil-000.tar", "cameras.npz", "meta.json")
    for name in (*names, "clips_17.json", "clips_81.json", "notes.txt", "frames-x.tar"):
        (tmp_path / name).write_text("")
    found = {tmp_path / name for name in (*names, "clips_17.json")}
    assert set(raw_files(external, tmp_path)) == found | {tmp_path}
    (tmp_path / "skeletons.npz").write_text("")
    assert set(raw_files(external, tmp_path)) == found | {tmp_path / "skeletons.npz"}


def test_a_submitted_job_refuses_settings_that_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not edited code alone: people edit while a run goes on."""
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    monkeypatch.setattr(settings_files, "code_digest", lambda: "of edited code")
    same = settings_files.settings_contents(settings())
    settings_files.check_unchanged(settings(), same)
    edited = settings(train={"lr": 0.5})
    with pytest.raises(UserError, match=r"while snakemake works \(train/settings.json hold others"):
        settings_files.check_unchanged(edited, settings_files.settings_contents(edited))


@pytest.mark.parametrize(
    ("val_runs", "said"),
    [([], "prep.val_runs is empty"), (["deathmatch__run-03"], "did you mean deathmatch__run-003")],
)
def test_validation_runs_must_exist_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val_runs: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        write_settings_files(settings(prep={"val_runs": val_runs}))
    assert list(tmp_path.iterdir()) == []


def test_more_runs_leave_the_settings_of_a_capture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_settings_files(settings())
    names = ("raw/vizdoom/settings.json", "data/gc25d_v10/settings/prep.json")
    before = [Path(name).stat().st_mtime_ns for name in names]
    index = read_json(Path("data/gc25d_v10/settings/index.json"))["runs"]
    write_settings_files(settings(capture={"runs_per_scene": 5}))
    assert [Path(name).stat().st_mtime_ns for name in names] == before
    assert len(read_json(Path("data/gc25d_v10/settings/index.json"))["runs"]) == len(index) + 3


def test_another_cadence_trains_no_step_that_lies_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [needed_before(step, 3) for step in (3, 6, 9)] == [0, 3, 6]
    for step in (2, 4):
        weights_file(step).parent.mkdir(parents=True)
        weights_file(step).touch()
    assert [needed_before(step, 3) for step in (3, 6, 9)] == [0, 0, 6]


def test_a_placed_state_is_where_the_chain_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_json(PLACED, {"step": 5})
    # 6 starts from the placed 5; 9 from 6; 3 lies behind it and is trained from the start.
    assert [needed_before(step, 3) for step in (3, 5, 6, 7, 9)] == [0, 0, 0, 6, 6]


def test_caches_lie_in_one_folder_and_sound_writes_nothing(tmp_path: Path) -> None:
    found = cache_environment(settings(cache_root=str(tmp_path)))
    folders = {name: value for name, value in found.items() if value.startswith(str(tmp_path))}
    assert {"HF_HOME", "MPLCONFIGDIR", "TMPDIR", "XDG_CACHE_HOME"} <= set(folders)
    assert found["ALSOFT_DRIVERS"] == "null"  # else PulseAudio's client makes ~/.config/pulse
