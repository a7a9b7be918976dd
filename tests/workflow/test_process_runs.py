"""The pipeline with two training processes, and the same run continued with one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gc25d.records import read_csv, read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")


def snakemake(folder: Path, target: str, *config: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(str(Path(sys.executable).with_name("snakemake")), "--cores", "2"),
            *("--directory", str(folder), "--configfile", str(SMALL)),
            *("--config", *config, "--", target),
        ],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )


def test_two_processes_then_one_in_the_same_run(tmp_path: Path) -> None:
    two = snakemake(tmp_path, "verify/step-4.json", "hardware={processes: 2}")
    assert two.returncode == 0, two.stdout
    one = snakemake(tmp_path, "verify/step-6.json", "train={max_steps: 6}")
    assert one.returncode == 0, one.stdout
    began = [event for event in read_jsonl(tmp_path / "train/history.jsonl") if "until" in event]
    assert [(e["until"], e["step"], e["engine"], e["processes"]) for e in began] == [
        (2, 0, "deepspeed", 2),
        (4, 2, "deepspeed", 2),
        (6, 4, "plain", 1),
    ]
    logged = read_csv(tmp_path / "train/train_log.csv")
    assert [len(row["clips"].split()) for row in logged] == [2, 2, 2, 2, 4, 4]


def test_processes_that_do_not_divide_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    refused = snakemake(tmp_path, "train/step-4/done.json", "hardware={processes: 3}")
    assert refused.returncode == 1
    assert "hardware asks for 3 processes (1 x 3)" in refused.stdout
    assert "use 1, 2, 4 processes" in refused.stdout
    assert not (tmp_path / "raw").exists()
    assert not (tmp_path / "train").exists()
