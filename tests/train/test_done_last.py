"""What says that a segment ended is written after its last state is whole, however slow the disk.

The last state is held back until somebody says too early that the segment ended, or, where nobody
does, for a moment.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from gc25d.records import read_jsonl
from gc25d.train import segment
from gc25d.train.pace import Pace
from gc25d.train.processes.signals import Preempted, Preemption
from gc25d.train.segment import SegmentFiles, Task, train_segment
from gc25d.train.states import writer
from gc25d.train.states.folder import newest_state, open_state, state_folder
from small_step import small_step

UNTIL, HELD_S = 2, 0.5
SETTINGS = small_step(
    train={"global_batch": 4, "warmup_steps": 2, "cpu_threads": 1, "ema": 0.5},
    validation={"n": 1, "timesteps": [500]},
)


class SlowDisk:
    """Holds the state after a step back, and keeps the order of what is said and made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.order: list[str] = []
        self._said = threading.Event()
        self._folder = state_folder(Path(), step).name
        self._publish = writer.publish
        monkeypatch.setattr(writer, "publish", self._held)
        for name in ("write_json", "record_event"):
            monkeypatch.setattr(segment, name, self._telling(name, getattr(segment, name)))

    def _held(self, building: Path, folder: Path) -> None:
        if folder.name == self._folder:
            self._said.wait(HELD_S)
        self._publish(building, folder)
        if folder.name == self._folder:
            self.order.append("state")

    def _telling(self, name: str, function: Any) -> Any:
        def told(path: Path, *rest: Any, **details: Any) -> None:
            what = rest[0] if name == "record_event" else path.name
            if what not in ("start", "resume"):
                self.order.append(what)
                self._said.set()
            function(path, *rest, **details)

        return told


def train(data: Path, run: Path) -> SegmentFiles:
    folder = run / f"step-{UNTIL}"
    files = SegmentFiles(
        *(folder / name for name in ("weights.safetensors", "probe.safetensors", "done.json"))
    )
    pace = Pace(micro_batch=4, save_every=100, validate_every=100, log_every=1, workers=0)
    train_segment(SETTINGS, data, run, Task(UNTIL, "b"), pace, files)
    return files


def test_done_comes_after_the_last_state_and_all_results(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_events: list[Any]
) -> None:
    disk = SlowDisk(monkeypatch, UNTIL)
    files = train(small_dataset, tmp_path)
    assert disk.order == ["state", "done.json", "finish"]
    state = newest_state([tmp_path / "states"], UNTIL, "b")
    assert state is not None
    assert (state.step, state.checkpoint) == (UNTIL, True)
    named = [event.to for event in disk_events if event.kind == "rename"]
    done = named.index(files.done)
    for result in (files.weights, files.probe, files.ema, files.ema_probe):
        assert named.index(result) < done, result.name


def test_a_stop_is_told_after_its_state_is_whole(
    small_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch, 1)
    monkeypatch.setattr(Preemption, "requested", property(lambda self: True))
    with pytest.raises(Preempted, match="stopped on request after step 1"):
        train(small_dataset, tmp_path)
    assert disk.order == ["state", "stop"]
    state = open_state(state_folder(tmp_path / "states", 1))
    assert not state.checkpoint
    assert [event["event"] for event in read_jsonl(tmp_path / "history.jsonl")] == ["start", "stop"]
    assert not (tmp_path / f"step-{UNTIL}").exists()
