"""What happens before a job runs: nothing is written, targets are understood, data are held."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.workflow import data_lock, targets

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")
READY = "data/gc25d_v10/READY"
FOLDERS = ("eval/step-4", "exports")
CAPTURE = "raw/vizdoom/deadly_corridor/run-000/meta.json"


def snakemake(
    folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Targets and options, as typed in the repository; output and errors together."""
    places = ("--directory", str(folder), "--configfile", str(SMALL))
    return subprocess.run(
        [str(Path(sys.executable).with_name("snakemake")), *arguments, *places],
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files; folders too, so that an empty one is seen."""
    found = (p for p in folder.rglob("*") if ".snakemake" not in p.relative_to(folder).parts)
    return {str(p): digest_file(p) if p.is_file() else "" for p in found}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("sft_v10", "--cores", "1", "-n"), 0),
        (("sft_v10", "--dag"), 0),
        (("sft_v10", "--rulegraph"), 0),
        (("--lint",), 0),
        (("--list",), 0),
        (("sft_v10", "--summary"), 0),
        (("evla/step-4/metrics.json", "--cores", "1"), 1),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_looking_writes_nothing(tmp_path: Path, arguments: tuple[str, ...], status: int) -> None:
    done = snakemake(tmp_path, *arguments)
    assert done.returncode == status, done.stdout
    assert contents(tmp_path) == {}


def test_looking_at_other_settings_leaves_those_that_are_there(tmp_path: Path) -> None:
    files = ("data/gc25d_v10/settings/prep.json", "data/gc25d_v10/settings/index.json")
    assert snakemake(tmp_path, *files, "--cores", "1").returncode == 0
    before = contents(tmp_path)
    other = ("--config", "geometry={frames: 13}", "prep={limit: 5}")
    planned = snakemake(tmp_path, READY, "--cores", "1", "-n", *other)
    assert "write_settings" in planned.stdout
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("eval/step4/metrics.json", "the nearest: eval/step-4/metrics.json"),
        ("sft_v01", "the nearest: sft_v10"),
        ("data/gc25d/READY", f"the nearest: {READY}"),
        ("exports/step-4-ema.safetensors", "set train.ema"),
        ("eval/step-0/metrics.json", "a step of at least 1"),
        ("eval/step-4", "the nearest: eval/step-4/metrics.json"),
        ("exports", "the nearest: exports/base.safetensors"),
    ],
)
def test_a_target_that_is_none_is_told_the_nearest(tmp_path: Path, asked: str, said: str) -> None:
    if asked in FOLDERS:
        (tmp_path / asked).mkdir(parents=True)
    done = snakemake(tmp_path, asked, "--cores", "1", "-n")
    assert done.returncode == 1
    assert asked in done.stdout
    assert said in done.stdout
    assert "Traceback" not in done.stdout


def made(path: str) -> bool:
    """Whether it is a score, or the data set `my-ema`."""
    return re.fullmatch(r"eval/step-[1-9]/metrics.json|data/my-ema/READY", path) is not None


@pytest.mark.parametrize(
    "asked", ["data/my-ema/READY", "./eval/step-2/metrics.json", "eval//step-2/metrics.json"]
)
def test_a_target_is_known_as_snakemake_spells_it(asked: str) -> None:
    targets.check_targets([asked], [], made, averaged=False)


def test_an_absolute_target_is_told_the_relative_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"folder: eval/step-2/metrics.json"):
        targets.check_targets(
            [str(tmp_path / "eval/step-2/metrics.json")], [], made, averaged=False
        )


def test_an_average_that_there_is_not_is_told_whatever_the_spelling() -> None:
    with pytest.raises(UserError, match=r"set train\.ema"):
        targets.check_targets(["./eval/step-2-ema/metrics.json"], [], made, averaged=False)


def test_snakemake_understands_another_spelling(tmp_path: Path) -> None:
    done = snakemake(tmp_path, "./eval//step-2/metrics.json", "--cores", "1", "-n", "--quiet")
    assert done.returncode == 0, done.stdout


def test_jobs_run_the_python_that_runs_snakemake(tmp_path: Path) -> None:
    """With another environment active, or none: neither its python nor its package is found."""
    lacking = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": ""}
    done = snakemake(tmp_path, CAPTURE, "--cores", "1", env=lacking)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / CAPTURE).exists()


READER = """
import sys, pathlib
from gc25d.workflow.data_lock import reading
with reading([pathlib.Path(sys.argv[1])]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def reader(data: Path, folder: Path) -> Iterator[None]:
    """A process of another working folder that reads the data."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", READER, str(data)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("")


def test_data_are_not_built_anew_under_a_training_of_another_folder(tmp_path: Path) -> None:
    """Refused before Snakemake deletes what its jobs would write."""
    data = tmp_path / "shared/gc25d_v10"
    rows = data / "index/runs/deadly_corridor__run-000.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("{}")
    here = tmp_path / "here"
    with reader(data, tmp_path / "there"):
        done = snakemake(
            here, str(rows), "--cores", "1", "--forcerun", "prep_run",
            "--config", f"data_root={tmp_path / 'shared'}",
        )  # fmt: skip
    assert done.returncode == 1
    assert "would be built anew under a training or evaluation" in done.stdout
    assert str(tmp_path / "there") in done.stdout
    assert rows.read_text() == "{}"
    assert not (here / "raw").exists()


def test_readers_share_and_builders_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, here, there = (tmp_path / name for name in ("data", "here", "there"))
    monkeypatch.setattr(data_lock, "_LOOK_S", 0.1)
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    with reader(data, there), data_lock.reading([data]):
        pass
    with contextlib.closing(data_lock.hold_for_building(data)):
        with data_lock.reading([data]):  # the training of the snakemake that built
            pass
        with pytest.raises(UserError, match=f"another snakemake builds it, from {here}"):
            data_lock.hold_for_building(data)
        monkeypatch.chdir(there)
        with (
            pytest.raises(UserError, match=f"a snakemake builds it from {here}"),
            data_lock.reading([data]),
        ):
            pass
    with data_lock.reading([data]):
        pass


class Job:
    """Of Snakemake's DAG, as far as the last look needs it."""

    def __init__(self, *output: Path) -> None:
        self.output = [str(path) for path in output]


def test_a_missing_or_forgotten_file_ends_a_run_with_an_error(tmp_path: Path) -> None:
    """As Snakemake 9.27 leaves them behind ancient() edges."""
    made, scored = Job(tmp_path / "made"), Job(tmp_path / "scored")
    goal = Job()
    reads = {made: {}, scored: {made: made.output}, goal: {scored: scored.output}}
    (tmp_path / "made").touch()
    (tmp_path / "scored").touch()
    targets.check_finished(reads, reads, {made, scored, goal}.__contains__)
    targets.check_finished(reads, reads, {goal}.__contains__)
    with pytest.raises(UserError, match="scored is older than what it is made from"):
        targets.check_finished(reads, reads, {made, goal}.__contains__)
    (tmp_path / "scored").unlink()
    with pytest.raises(UserError, match="scored is missing"):
        targets.check_finished(reads, reads, {made, goal}.__contains__)
    (tmp_path / "scored").touch()
    (tmp_path / "made").unlink()
    targets.check_finished(reads, reads, {scored, goal}.__contains__)
    with pytest.raises(UserError, match="made is missing"):
        targets.check_finished(reads, reads, {scored, goal}.__contains__, [made.output[0]])
