"""Run by test_environment.py: the small training in many environments, one after the other.

    python hostile_runs.py <data set> <folder>

The folder has settings.json and cases.json; found.json gets the outcomes in the same order.

Libraries are imported once; each case is a fork that sets the case's variables, starts as a step
does if the case says so, and trains. What it ended with and the SHA-256 of its weights are kept.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from gc25d.environment import clean_this_process
from gc25d.files import digest_file
from gc25d.settings.steps import TrainStep, load_step
from gc25d.train.pace import Pace
from gc25d.train.segment import SegmentFiles, Task, train_segment

LIMIT_S = 60.0


def train(settings: TrainStep, data: Path, run: Path) -> str:
    """Two micro-batches make a step; returns the digest of the weights."""
    files = SegmentFiles(*(run / name for name in ("weights.safetensors", "probe", "done.json")))
    pace = Pace(micro_batch=2, save_every=9, validate_every=9, log_every=9, workers=0)
    train_segment(settings, data, run, Task(1, "b"), pace, files)
    return digest_file(files.weights)


def child(
    settings: TrainStep, data: Path, run: Path, variables: dict[str, str], *, as_a_step: bool
) -> None:
    """One case, to its end; writes the digest beside its run."""
    os.environ.update(variables)
    if as_a_step:
        clean_this_process()
    run.mkdir()
    with (run / "said.txt").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    try:
        (run / "digest").write_text(train(settings, data, run))
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def outcome(pid: int, run: Path) -> str:
    """The digest, or how it ended without one."""
    deadline = time.monotonic() + LIMIT_S
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"still at work after {LIMIT_S:.0f} s"
        time.sleep(0.005)
    if done[1]:
        return f"status {done[1]}: {(run / 'said.txt').read_text()[-500:]}"
    return (run / "digest").read_text()


def main(data: Path, folder: Path) -> None:
    """Run all cases."""
    settings = load_step(folder / "settings.json", TrainStep)
    results = []
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        run = folder / str(number)
        pid = os.fork()
        if not pid:
            child(settings, data, run, case["variables"], as_a_step=case["as_a_step"])
        results.append(outcome(pid, run))
    (folder / "found.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
