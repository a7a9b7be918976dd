"""An export is scored only once it is verified, and only on the data that it was trained with.

The runs are made of stand-ins: names and times are all that a plan looks at. What is really run is
the binding and the verification, which refuse.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gc25d.records import read_json, write_json

ROOT = Path(__file__).parents[2]
DATA = "data/gc25d_v10"
CAPTURED = ("frames.tar", "stencil.tar", "cameras.npz", "skeletons.npz", "clips_9.json")
RUNS = tuple(f"castle__run-{number:03d}" for number in range(2))
SETTINGS: dict[str, Any] = {
    "raw_root": "captures",
    "capture": {"source": "external"},
    "geometry": {"frames": 9, "height": 64, "width": 64},
    "prep": {"val_runs": [RUNS[1]], "text": {"length": 16, "dim": 8}},
    "train": {"global_batch": 4, "max_steps": 2, "checkpoint_every": 2},
    "validation": {"every": 2},
}
PREPARED = (
    *(f"{DATA}/{kind}/{run}.safetensors" for run in RUNS for kind in ("latents", "ids")),
    *(f"{DATA}/index/runs/{run}.jsonl" for run in RUNS),
    *(f"{DATA}/text/table.safetensors", f"{DATA}/index/clips.jsonl"),
)
TRAINED = (
    *("train/step-2/weights.safetensors", "train/step-2/probe.safetensors"),
    "train/step-2/done.json",
    *(f"exports/{checkpoint}.safetensors" for checkpoint in ("step-2", "base")),
    "verify/step-2.json",
)
SETTINGS_FILES = (
    *(f"{DATA}/settings/{step}.json" for step in ("prep", "text", "index")),
    *("train/settings.json", "eval/settings.json"),
)
EVALUATIONS = ("eval/step-2", "eval/base")


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Targets and options; output and errors together."""
    executable = Path(sys.executable).with_name("snakemake")
    places = ("--directory", str(folder), "--configfile", str(folder / "own.yaml"))
    return subprocess.run(
        [str(executable), *arguments, *places, "--cores", "2"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{executable.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )


def planned(folder: Path, *targets: str) -> set[str]:
    """Rules that would run."""
    done = snakemake(folder, *targets, "-n")
    assert done.returncode == 0, done.stdout
    return {line.split()[1].rstrip(":") for line in done.stdout.splitlines() if is_job(line)}


def is_job(line: str) -> bool:
    return line.startswith(("rule ", "localrule ", "checkpoint "))


def stand_in(folder: Path, *names: str) -> None:
    """Files that are younger than all before."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("made")
    time.sleep(0.01)


def declare_ready(folder: Path, fingerprint: str) -> None:
    ready = {"fingerprint": fingerprint, "steps_per_epoch": 1}
    write_json(folder / f"{DATA}/READY", ready)
    time.sleep(0.01)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is trained, exported, verified and evaluated, bound by the real step."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "own.yaml").write_text(yaml.safe_dump(SETTINGS))
    for run in RUNS:
        capture = folder / "captures/drawn" / run.replace("__", "/")
        stand_in(capture, *CAPTURED, "meta.json")
    # Settings files come first: what is made from them is younger.
    written = snakemake(folder, *SETTINGS_FILES)
    assert written.returncode == 0, written.stdout
    stand_in(folder, *PREPARED)
    declare_ready(folder, "of the training")
    bound = snakemake(folder, "train/binding.json")
    assert bound.returncode == 0, bound.stdout
    assert read_json(folder / "train/binding.json")["data_fingerprint"] == "of the training"
    stand_in(folder, *TRAINED)
    for place in EVALUATIONS:
        (folder / place / "clips").mkdir(parents=True)
        stand_in(folder / place, "metrics.json", "scores.png", "sheet.png")
    return folder


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    """A copy, times included, that a test may change."""
    return Path(shutil.copytree(evaluated, tmp_path / "run"))


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("place", EVALUATIONS)
def test_other_data_are_refused_when_only_the_evaluation_is_asked_for(
    run: Path, place: str, scored: bool
) -> None:
    if not scored:
        shutil.rmtree(run / place)
    declare_ready(run, "of something else")
    refused = snakemake(run, f"{place}/metrics.json")
    assert refused.returncode != 0, refused.stdout
    assert "of something else" in refused.stdout
    assert "of the training" in refused.stdout
    assert (run / place / "metrics.json").exists() == scored
    assert not (run / "logs/eval").exists()


def test_an_evaluation_asks_for_the_verification(run: Path) -> None:
    shutil.rmtree(run / "eval")
    (run / "verify/step-2.json").unlink()
    rules = planned(run, "eval/step-2/metrics.json")
    assert {"verify_export", "evaluate_checkpoint"} <= rules
    assert "train_segment" not in rules
    # The starting weights have nothing to be verified against.
    assert "verify_export" not in planned(run, "eval/base/metrics.json")


def test_what_fails_its_verification_is_not_evaluated(run: Path) -> None:
    """The stand-in is no export. With --keep-going all runs that does not wait for it."""
    shutil.rmtree(run / "eval")
    (run / "verify/step-2.json").unlink()
    targets = ("verify/step-2.json", "eval/step-2/metrics.json")
    failed = snakemake(run, *targets, "--keep-going")
    assert failed.returncode != 0
    assert (run / "logs/export/verify-2.log").exists(), failed.stdout
    assert not (run / "logs/eval/step-2.log").exists(), failed.stdout
    assert not (run / "eval/step-2/metrics.json").exists()
