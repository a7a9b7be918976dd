"""kill -9 of everything, at chosen moments and at random ones: the result stays the same."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gc25d.files import digest_file
from gc25d.records import digest_json, read_csv, read_json, read_jsonl, write_json
from gc25d.settings.steps import TrainStep, step_json

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


def signal_when(folder: Path, reached: Callable[[], bool], number: signal.Signals) -> None:
    """Start the pipeline, wait for the moment, signal the whole group at once, wait for its end."""
    running = start(folder)
    deadline = time.monotonic() + 300
    while not reached():
        assert running.poll() is None, (folder / "output.log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(running.pid, number)
    assert running.wait(120) != 0


def kill_when(folder: Path, reached: Callable[[], bool]) -> None:
    """Kill the whole group at a moment."""
    signal_when(folder, reached, signal.SIGKILL)
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


@pytest.mark.slow
def test_asked_to_stop_it_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    states = tmp_path / "train/states"
    # Ctrl-C in a terminal, then a scheduler: both reach Snakemake and the trainer alike.
    for moment, number in ((10, signal.SIGINT), (40, signal.SIGTERM)):
        signal_when(tmp_path, lambda moment=moment: steps_logged(tmp_path) >= moment, number)
        last = steps_logged(tmp_path)
        assert max(int(folder.name.removeprefix("step-")) for folder in states.iterdir()) == last
    assert start(tmp_path).wait() == 0, (tmp_path / "output.log").read_text()
    events = [(e["event"], e["step"]) for e in read_jsonl(tmp_path / "train/history.jsonl")]
    stops = [step for event, step in events if event == "stop"]
    assert len(stops) == 2
    assert [step for event, step in events if event == "resume"] == [stops[0], 30, stops[1]]
    rows = read_csv(tmp_path / "train/train_log.csv")
    assert [int(row["step"]) for row in rows] == [*range(1, 61)]


class Trainer:
    """The command of the rule `train_segment`, to step 120, with a state after every second."""

    STEPS = 120
    SETTINGS: ClassVar[dict[str, Any]] = {
        "geometry": {"frames": 9, "height": 64, "width": 64},
        "text_length": 16,
        "text_dim": 8,
        "samples": {},
        "model": {},
        "train": {"global_batch": 4, "warmup_steps": 2, "cpu_threads": 1, "ema": 0.9},
        "validation": {"n": 2, "timesteps": [500]},
    }

    def __init__(self, folder: Path, data: Path) -> None:
        self.run = folder / "train"
        settings = step_json(TrainStep.model_validate(self.SETTINGS))
        write_json(self.run / "settings.json", settings)
        binding = {
            "data_fingerprint": read_json(data / "READY")["fingerprint"],
            "settings_sha256": digest_json(settings),
        }
        write_json(self.run / "binding.json", binding)
        self.results = {
            name: self.run / f"step-{self.STEPS}/{name}.safetensors"
            for name in ("weights", "probe")
        }
        self.done = self.run / f"step-{self.STEPS}/done.json"
        self.data = data

    def start(self) -> subprocess.Popen[bytes]:
        numbers = {
            **{"until": self.STEPS, "micro-batch": 4, "save-every": 2},
            **{"validate-every": 50, "log-every": 10, "workers": 0, "nodes": 1, "processes": 1},
            "gpus-per-node": 0,
        }
        paths = {
            **{"settings": self.run / "settings.json", "binding": self.run / "binding.json"},
            **{"data": self.data, **self.results, "done": self.done},
        }
        options = [f"--{name}={value}" for name, value in {**numbers, **paths}.items()]
        command = [sys.executable, "-m", "gc25d.steps.train", *options, "--engine=plain"]
        log = self.run / "log.txt"
        return subprocess.Popen([*command, f"--log={log}"], start_new_session=True)

    def attempts(self) -> list[dict[str, Any]]:
        history = self.run / "history.jsonl"
        return list(read_jsonl(history)) if history.exists() else []

    def logged(self) -> int:
        return len(read_csv(self.run / "train_log.csv"))

    def writing(self) -> bool:
        return any(self.run.glob("states/.step-*.tmp"))

    def kill(self, steps: int | None, wait_s: float, writing: bool) -> None:
        """Kill it some time after its start (or after so many steps), or at the next save then."""
        before = len(self.attempts())
        running = self.start()

        def until(reached: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 100
            while not reached():
                assert running.poll() is None, (self.run / "log.txt").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.001)

        if steps is not None:
            until(lambda: len(self.attempts()) > before)
            goal = self.attempts()[-1]["step"] + steps
            until(lambda: self.logged() >= goal)
        time.sleep(wait_s)
        if writing:
            until(self.writing)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@pytest.mark.slow
def test_random_kills_of_the_trainer_change_nothing(small_dataset: Path, tmp_path: Path) -> None:
    whole, killed = (Trainer(tmp_path / name, small_dataset) for name in ("whole", "killed"))
    assert whole.start().wait() == 0
    moments, writing = random.Random(0), 0
    for number in range(12):
        # Of three kills one comes at any time after the start, one in training, one in a save.
        if number % 3 == 0:
            killed.kill(None, moments.uniform(0, 5), writing=False)
        else:
            steps, wait_s = moments.randrange(9), moments.uniform(0, 0.2)
            killed.kill(steps, wait_s, writing=number % 3 == 2)
        writing += killed.writing()
    assert writing >= 2  # half-written states were left, and did no harm
    resumed = {attempt["step"] for attempt in killed.attempts()}
    assert len(resumed) >= 4  # and it went on from states in between
    assert killed.start().wait() == 0
    for name, result in whole.results.items():
        assert digest_file(killed.results[name]) == digest_file(result), name
    average = "ema.safetensors"
    averages = [trainer.done.with_name(average) for trainer in (whole, killed)]
    assert digest_file(averages[0]) == digest_file(averages[1])
    logged = [
        [(row["step"], row["clips"], row["loss"]) for row in read_csv(run / "train_log.csv")]
        for run in (whole.run, killed.run)
    ]
    assert logged[0] == logged[1]
    assert [int(step) for step, _, _ in logged[0]] == [*range(1, Trainer.STEPS + 1)]
    validated = [int(row["step"]) for row in read_csv(killed.run / "val_log.csv")]
    assert validated == [0, 50, 100, 120]
    assert not killed.writing()
    assert sorted(path.name for path in (killed.run / "states").iterdir()) == [
        *("step-0000118", "step-0000120")
    ]
