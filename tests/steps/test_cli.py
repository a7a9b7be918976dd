"""What ends a step: one line on the terminal, a traceback in the log, a full disk by name."""

import argparse
import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from gc25d import tensors
from gc25d.capture.raw.arrays import write_arrays
from gc25d.errors import UserError
from gc25d.files import write_text
from gc25d.records import append_jsonl, write_json
from gc25d.steps import cli
from gc25d.tensors import write_tensors

RUST = "Error while serializing: I/O error: No space left on device (os error 28)"
"""What safetensors 0.8 raises on a tmpfs of 256 kB for a tensor of 1.2 MB, word for word."""
Step = Callable[[argparse.Namespace], None]


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Steps configure logging for a process of their own."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    made = set(root.handlers).difference(before[0])
    root.handlers[:], root.level = before
    for handler in made:
        with contextlib.suppress(OSError):  # of a log on a full disk
            handler.close()


def ended(step: Step, log: Path | None, **arguments: Path) -> int:
    with pytest.raises(SystemExit) as left:
        cli.run(step, argparse.Namespace(log=log, **arguments))
    assert isinstance(left.value.code, int)
    return left.value.code


def raising(error: Exception) -> Step:
    def step(arguments: argparse.Namespace) -> None:
        logging.getLogger("gc25d").info("began")
        raise error

    return step


def test_a_fault_is_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs/step.log"
    assert ended(raising(ValueError("two\nlines")), log) == 1
    assert capsys.readouterr().err == (
        "ERROR: this is a fault of the program, not of its input: ValueError: two lines: its "
        f"traceback is in {log}\n"
    )
    text = log.read_text()
    assert "INFO began" in text
    assert text.count("Traceback (most recent call last)") == 1
    assert "in step\n    raise error\nValueError: two\nlines" in text


def test_the_systems_errors_leave_their_traceback_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "step.log"
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "data/x")
    assert ended(raising(denied), log) == 1
    assert capsys.readouterr().err == (
        "ERROR: data/x: Permission denied: see that it exists and is yours: its traceback is in "
        f"{log}\n"
    )
    assert "PermissionError" in log.read_text()
    assert ended(raising(denied), None) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "ERROR: data/x: Permission denied: see that it exists and is yours"
    ]


def test_without_a_log_a_fault_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(raising(ValueError("here")), None) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_users_mistake_is_one_line_in_both_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "step.log"
    assert ended(raising(UserError("x: found 1, expected 2: change it")), log) == 1
    assert capsys.readouterr().err == "ERROR: x: found 1, expected 2: change it\n"
    assert "ERROR x: found 1, expected 2: change it\n" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_log_that_cannot_be_opened_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("a file")
    assert ended(raising(ValueError()), tmp_path / "logs/step.log") == 1
    assert capsys.readouterr().err.startswith(f"ERROR: {tmp_path}/logs: File exists")


def test_a_log_on_a_full_disk_is_told_once_and_stops_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def step(arguments: argparse.Namespace) -> None:
        for number in range(3):
            logging.getLogger("gc25d").info("%d", number)

    # /dev/full is a disk without room.
    cli.run(step, argparse.Namespace(log=Path("/dev/full")))
    assert capsys.readouterr().err.splitlines() == [
        "WARNING: this log misses lines: /dev/full: [Errno 28] No space left on device"
    ]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
QUOTA = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def chained() -> Exception:
    try:
        raise FULL
    except OSError as error:
        outer = RuntimeError("a worker failed")
        outer.__cause__ = error
        return outer


@pytest.mark.parametrize("error", [FULL, QUOTA, SafetensorError(RUST), chained()])
def test_a_disk_that_is_full_is_named_by_whoever_ends(
    tmp_path: Path,
    error: Exception,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = tmp_path / "full"
    free = {full: 4096}
    monkeypatch.setattr("gc25d.full_disk.free_bytes", lambda folder: free.get(folder, 1 << 40))
    log = tmp_path / "step.log"
    assert ended(raising(error), log, data=tmp_path / "in", out=full / "x.json") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ERROR: {full}: the disk, or a quota on it, is full (4.1e-06 GB free).")
    assert "Nothing is lost" in said
    assert "give the same command again" in said
    assert len(said.splitlines()) == 1
    assert "Traceback" in log.read_text()


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, "new"),
    "json": lambda path: write_json(path, {"new": 1}),
    "tensors": lambda path: write_tensors(path, {"a": torch.zeros(2)}, {}),
    "arrays": lambda path: write_arrays(path, a=np.zeros(2)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_that_fills_the_disk_names_its_folder_and_keeps_the_old_file(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*arguments: object, **options: object) -> None:
        raise SafetensorError(RUST) if writer == "tensors" else FULL

    path = tmp_path / "results/x"
    path.parent.mkdir()
    path.write_text("old")
    if writer == "tensors":
        monkeypatch.setattr(tensors, "save_file", no_room)
    elif writer == "arrays":
        monkeypatch.setattr(np, "savez_compressed", no_room)
    else:
        monkeypatch.setattr(Path, "write_text", no_room)
    said = rf"^{re.escape(str(path.parent))}: the disk, or a quota on it, is full \(.* GB free\)\. "
    with pytest.raises(UserError, match=said + "Nothing is lost: x is as it was before"):
        WRITERS[writer](path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["x"]


def test_a_row_that_finds_no_room_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = Path.open, Path("/dev/full")
    monkeypatch.setattr(Path, "open", lambda self, mode: real(full if mode == "ab" else self, mode))
    said = rf"^{re.escape(str(tmp_path))}: the disk, or a quota on it, is full"
    with pytest.raises(UserError, match=said):
        append_jsonl(tmp_path / "history.jsonl", {"a": 1})
