"""kill -9 of everything, in capture, in prep and twice in training: the export stays the same."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gc25d.records import digest_file, read_csv, read_jsonl

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")
LONGER = "train={max_steps: 60, checkpoint_every: 30, save_every: 7}"
FINAL = "exports/step-60.safetensors"


def command(folder: Path, *arguments: str) -> list[str]:
    executable = Path(sys.executable).with_name("snakemake")
    settings = ("--directory", str(folder), "--configfile", str(SMALL))
    return [str(executable), *settings, "--cores", "2", *arguments, "--config", LONGER]


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The pipeline as the leader of a process group of its own."""
    with (folder / "output.log").open("ab") as output:
        return subprocess.Popen(
            command(folder, FINAL),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_when(folder: Path, reached: Callable[[], bool]) -> None:
    """Start the pipeline, wait for the moment, and end the whole group at once."""
    running = start(folder)
    deadline = time.monotonic() + 300
    while not reached():
        assert running.poll() is None, (folder / "output.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    subprocess.run(command(folder, "--unlock"), cwd=ROOT, check=True, capture_output=True)


def steps_logged(folder: Path) -> int:
    return len(read_csv(folder / "train/train_log.csv"))


@pytest.mark.slow
def test_killed_anywhere_the_result_is_the_same(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert start(whole).wait() == 0
    kill_when(killed, lambda: any(killed.glob("raw/*/*/*/frames.tar")))
    kill_when(killed, lambda: any(killed.glob("data/*/ids/*.safetensors")))
    for moment in (12, 41):
        kill_when(killed, lambda moment=moment: steps_logged(killed) >= moment)
    assert start(killed).wait() == 0, (killed / "output.log").read_text()
    assert digest_file(killed / FINAL) == digest_file(whole / FINAL)
    assert [int(row["step"]) for row in read_csv(killed / "train/train_log.csv")] == [*range(1, 61)]
    crashed = [
        row["crashed"] for row in read_jsonl(killed / "train/history.jsonl") if "until" in row
    ]
    assert crashed.count(True) == 2
