"""A trainer that is asked to stop: the step is finished, its state saved, the rest comes later."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gc25d.files import digest_file
from gc25d.records import read_csv, read_jsonl
from gc25d.train.pace import Pace
from gc25d.train.processes.signals import Preempted
from gc25d.train.segment import SegmentFiles, Task, train_segment
from gc25d.train.states.files import open_state
from gc25d.train.states.folder import state_folder
from small_step import small_step

STEPS = 12
SETTINGS = small_step(
    train={"global_batch": 4, "warmup_steps": 2, "cpu_threads": 1, "ema": 0.75},
    validation={"n": 2, "timesteps": [500]},
)


def train(data: Path, run: Path) -> list[str]:
    """Train to the end, no state before it; returns the digests of weights and their average."""
    folder = run / f"step-{STEPS}"
    files = SegmentFiles(
        *(folder / name for name in ("weights.safetensors", "probe.safetensors", "done.json"))
    )
    pace = Pace(micro_batch=4, save_every=100, validate_every=100, log_every=1, workers=0)
    train_segment(SETTINGS, data, run, Task(STEPS, "b"), pace, files)
    return [digest_file(files.weights), digest_file(files.ema)]


@pytest.fixture
def signals_do_no_harm() -> Iterator[None]:
    """One that comes late must not end the tests."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("signals_do_no_harm")
def test_what_follows_a_stop_is_what_would_have_followed_anyway(
    small_dataset: Path, tmp_path: Path
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    expected = train(small_dataset, whole)

    def ask_after_two_steps() -> None:
        deadline = time.monotonic() + 60
        while len(read_csv(stopped / "train_log.csv")) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_after_two_steps)
    asking.start()
    with pytest.raises(Preempted, match=r"stopped on request after step \d+, whose state is saved"):
        train(small_dataset, stopped)
    asking.join()
    rows = read_csv(stopped / "train_log.csv")
    assert 2 <= len(rows) < STEPS
    state = open_state(state_folder(stopped / "states", len(rows)))
    assert not state.checkpoint
    assert not (stopped / f"step-{STEPS}").exists()

    assert train(small_dataset, stopped) == expected
    events = [
        (event["event"], event["step"], event.get("crashed"))
        for event in read_jsonl(stopped / "history.jsonl")
    ]
    # It did not crash: it said how it ended.
    assert events == [
        ("start", 0, False),
        ("stop", len(rows), None),
        ("resume", len(rows), False),
        ("finish", STEPS, None),
    ]
    names = ("step", "clips", "loss", "grad_norm")
    seen = [
        [[row[name] for name in names] for row in read_csv(run / "train_log.csv")]
        for run in (whole, stopped)
    ]
    assert seen[0] == seen[1]
