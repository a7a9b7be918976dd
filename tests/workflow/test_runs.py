"""Captures that come, go or change are noticed, and only what they concern is done again."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gc25d.records import read_json, read_jsonl, write_json
from gc25d.settings.loading import load_settings
from gc25d.workflow.runs import settings_paths
from gc25d.workflow.settings_files import settings_contents

ROOT = Path(__file__).parents[2]
READY = "data/gc25d_v10/READY"
RAW = ("frames.tar", "stencil.tar", "cameras.npz", "skeletons.npz", "clips_9.json", "meta.json")
JOINS = {"encode_text": 1, "build_index": 1}
ONE_RUN = {"prep_run": 1, **JOINS}


def settings(**prep: object) -> dict:
    return {
        "raw_root": "captures",
        "capture": {"source": "external"},
        "geometry": {"frames": 9, "height": 64, "width": 64},
        "prep": {"val_runs": ["castle__run-002"], "text": {"length": 16, "dim": 8}, **prep},
        "train": {"global_batch": 4},
    }


def snakemake(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("snakemake")), "--cores", "1", READY),
            *("--directory", str(folder), "--configfile", str(folder / "own.yaml"), *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def jobs(folder: Path) -> dict[str, int]:
    """How often each rule would run."""
    said = snakemake(folder, "-n")
    table = said.split("Job stats:")[-1].splitlines()[3:] if "Job stats:" in said else []
    counted = [line.split() for line in table if len(line.split()) == 2]
    apart = ("total", "write_settings")
    return {rule: int(count) for rule, count in counted if count.isdigit() and rule not in apart}


def write_settings(folder: Path) -> None:
    """As the rule does."""
    with contextlib.chdir(folder):
        chosen = load_settings(settings())
        for name, content in settings_contents(chosen).items():
            write_json(settings_paths(chosen)[name], content)


def add_run(folder: Path, number: int) -> Path:
    run = folder / f"captures/drawn/castle/run-{number:03d}"
    run.mkdir(parents=True)
    for name in RAW:
        (run / name).write_text(f"{name} of run {number}")
    return run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs and a data set younger than they are. A dry run looks at names and times only."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "own.yaml").write_text(yaml.safe_dump(settings()))
    for number in range(3):
        add_run(folder, number)
    assert jobs(folder) == {"prep_run": 3, **JOINS}
    write_settings(folder)
    data = folder / "data/gc25d_v10"
    outputs = [
        *(
            f"{kind}/castle__run-{n:03d}.safetensors"
            for n in range(3)
            for kind in ("latents", "ids")
        ),
        *(f"index/runs/castle__run-{n:03d}.jsonl" for n in range(3)),
        *("text/table.safetensors", "index/clips.jsonl", "READY"),
    ]
    for name in outputs:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("made")
    write_json(data / "READY", {"fingerprint": "made"})
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy, times included, that a test may change."""
    return Path(shutil.copytree(built, tmp_path / "runs"))


def test_nothing_is_done_again_while_nothing_changes(folder: Path) -> None:
    assert jobs(folder) == {}
    os.utime(folder / "captures/drawn")  # a folder's time is nobody's business
    assert jobs(folder) == {}


def test_an_added_run_is_prepared_and_joined(folder: Path) -> None:
    add_run(folder, 3)
    assert jobs(folder) == ONE_RUN


def test_a_removed_run_is_joined_out(folder: Path) -> None:
    shutil.rmtree(folder / "captures/drawn/castle/run-001")
    assert jobs(folder) == JOINS


@pytest.mark.parametrize("name", ["frames.tar", "clips_9.json"])
def test_a_changed_file_concerns_its_run_only(folder: Path, name: str) -> None:
    (folder / "captures/drawn/castle/run-001" / name).write_text("captured again")
    assert jobs(folder) == ONE_RUN


def test_a_file_that_goes_concerns_its_run_only(folder: Path) -> None:
    (folder / "captures/drawn/castle/run-001/stencil.tar").unlink()
    assert jobs(folder) == ONE_RUN


def test_buried_clips_and_strictness_concern_the_index_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "buried.txt").write_text("castle__run-000__000009 # smoke\n")
    changed = settings(buried_file=str(folder / "buried.txt"), strict=True)
    (folder / "own.yaml").write_text(yaml.safe_dump(changed))
    assert jobs(folder) == {"build_index": 1}
    monkeypatch.chdir(folder)
    index = settings_contents(load_settings(changed))["index"]
    assert index["buried"] == ["castle__run-000__000009"]
    assert index["strict"] is True


@pytest.mark.slow
def test_a_run_that_lacks_a_file_stops_no_other(small_dataset: Path, tmp_path: Path) -> None:
    """Built for real: the run is named in READY, and built once its file is there."""
    shutil.copytree(small_dataset.parent / "raw", tmp_path / "captures")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings()))
    lacking = tmp_path / "captures/drawn/castle/run-000/skeletons.npz"
    shutil.move(lacking, tmp_path / "kept.npz")
    snakemake(tmp_path)
    ready = read_json(tmp_path / READY)
    assert list(ready["failed_runs"]) == ["castle__run-000"]
    assert ready["counts"]["usable_train"] == 5
    assert jobs(tmp_path) == {}
    shutil.copyfile(tmp_path / "kept.npz", lacking)
    snakemake(tmp_path)
    assert read_json(tmp_path / READY)["failed_runs"] == {}
    rows = read_jsonl(tmp_path / "data/gc25d_v10/index/clips.jsonl")
    expected = read_jsonl(small_dataset / "index/clips.jsonl")
    assert [row["digests"] for row in rows] == [row["digests"] for row in expected]
