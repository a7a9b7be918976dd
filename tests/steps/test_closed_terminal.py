"""A step whose terminal or pipe is closed goes on to its end and its status."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEP = """
import fcntl, logging, sys, termios, time
from argparse import Namespace
from pathlib import Path
from gc25d.steps import cli
from gc25d.train.outputs.logs import RunLog, TRAIN_COLUMNS
from gc25d.train.processes.signals import Preempted, Preemption

folder = Path(sys.argv[1])

def main(arguments):
    with Preemption() as preemption, RunLog(folder, 0, 9, 1) as log:
        (folder / "ready").touch()
        while not (preemption.requested or (folder / "closed").exists()):
            time.sleep(0.02)
        log.train_row(dict.fromkeys(TRAIN_COLUMNS, 0.5) | {"step": 1})
        time.sleep(0.3)  # the progress bar is drawn again
        print("to nobody", flush=True)
        print("nor this", file=sys.stderr)
        logging.getLogger("gc25d").error("but this")
    (folder / "saved").touch()
    raise Preempted("saved")

if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
cli.run(main, Namespace(log=folder / "log.txt"))
"""


def wait_for(file: Path, step: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert step.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("way", ["terminal", "pipe"])
def test_what_is_printed_to_nobody_ends_no_step(way: str, tmp_path: Path) -> None:
    """The kernel sends SIGHUP when a terminal goes, and no signal that Python heeds for a pipe."""
    outside, inside = pty.openpty() if way == "terminal" else os.pipe()
    step = subprocess.Popen(
        [sys.executable, "-c", STEP, str(tmp_path)],
        stdin=inside if way == "terminal" else subprocess.DEVNULL,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    wait_for(tmp_path / "ready", step)
    os.close(outside)
    (tmp_path / "closed").touch()
    assert step.wait(30) == 75
    assert (tmp_path / "saved").exists()
    told = (tmp_path / "log.txt").read_text()
    assert "but this" in told
    assert "Traceback" not in told
