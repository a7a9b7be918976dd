"""A terminal that is closed while the pipeline trains in it, as the kernel tells it."""

import contextlib
import fcntl
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gc25d.records import read_csv, read_jsonl

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).with_name("small.yaml")
STEPS = 24


def command(folder: Path, processes: int, *arguments: str) -> list[str]:
    """To step 24 in one segment, which alone saves a state, but for stops."""
    settings = f"train={{max_steps: {STEPS}, checkpoint_every: {STEPS}, save_every: {STEPS}}}"
    return [
        *(str(Path(sys.executable).with_name("snakemake")), "--cores", "2", *arguments),
        *("--directory", str(folder), "--configfile", str(SMALL)),
        *("--config", settings, f"hardware={{processes: {processes}}}"),
        *("--", f"train/step-{STEPS}/done.json"),
    ]


class Terminal:
    """A terminal with a program in its foreground."""

    def __init__(self, program: list[str]) -> None:
        self.outside, inside = pty.openpty()
        os.set_blocking(self.outside, False)
        self.said = b""
        self.program = subprocess.Popen(
            program,
            cwd=ROOT,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)

    def close_when(self, reached: Callable[[], bool]) -> list[psutil.Process]:
        """Returns what the program had started by then."""
        deadline = time.monotonic() + 300
        while not reached():
            with contextlib.suppress(BlockingIOError):
                self.said += os.read(self.outside, 1 << 16)
            assert self.program.poll() is None, self.said.decode()
            assert time.monotonic() < deadline, self.said.decode()
            time.sleep(0.02)
        started = psutil.Process(self.program.pid).children(recursive=True)
        os.close(self.outside)
        return started


@pytest.mark.parametrize("processes", [1, 2])
def test_no_step_is_lost_with_the_terminal(processes: int, tmp_path: Path) -> None:
    """Snakemake dies of it, the trainer goes on to its save, and the same command from there."""

    def steps() -> int:
        return len(read_csv(tmp_path / "train/train_log.csv"))

    terminal = Terminal(command(tmp_path, processes))
    started = terminal.close_when(lambda: steps() >= 5)
    assert len(started) >= processes
    terminal.program.wait(60)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive
    reached = steps()
    assert 5 <= reached < STEPS
    states = [folder.name for folder in (tmp_path / "train/states").iterdir()]
    assert states == [f"step-{reached:07d}"]

    for arguments in (["--unlock"], []):
        done = subprocess.run(
            command(tmp_path, processes, *arguments), cwd=ROOT, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
    events = [(e["event"], e["step"]) for e in read_jsonl(tmp_path / "train/history.jsonl")]
    assert events == [("start", 0), ("stop", reached), ("resume", reached), ("finish", STEPS)]
    rows = read_csv(tmp_path / "train/train_log.csv")
    assert [int(row["step"]) for row in rows] == [*range(1, STEPS + 1)]
