"""kill -9 of everything at random moments, again and again: does the run end as if nothing was?

Runs the pipeline to an export undisturbed, then in a second folder with kills. Each attempt is the
documented command; a moment drawn from a seed later its whole process group is killed, wherever it
is by then: in capture, prep, training, export, or while a state is being written, for which every
second kill waits. Then `--unlock` and the same command again. The one after the last kill is left
alone.

Fails unless the export has the undisturbed run's SHA-256, train_log.csv has every step exactly
once and nothing half-written is left. Writes results/kill-CPU.json.

Run: python -m bench.training.kill [--kills 40] [--span 30] [--seed 0]
     python -m bench.training.kill --label DeepSpeed --config 'hardware={processes: 2}' --kills 40
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.report import RESULTS, print_table, write_result
from gc25d.files import digest_file
from gc25d.records import read_csv, read_jsonl

ROOT = Path(__file__).parents[2]
POLL_S = 0.005
ENDS_S = 20.0


@dataclass(frozen=True)
class Pipeline:
    """A working directory and how it is always run."""

    folder: Path
    target: str
    options: tuple[str, ...]

    @property
    def export(self) -> Path:
        """The file that counts."""
        return self.folder / self.target

    @property
    def step(self) -> int:
        """Its optimizer step, the run's last."""
        return int(self.export.stem.removeprefix("step-"))

    def command(self, *arguments: str) -> list[str]:
        """As a user types it, with more arguments."""
        executable = Path(sys.executable).with_name("snakemake")
        where = ("--directory", str(self.folder), "--cores", "2")
        return [str(executable), *where, *arguments, *self.options]

    def start(self) -> subprocess.Popen[bytes]:
        """The documented command, as the leader of a session of its own."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "output.log").open("ab") as output:
            return subprocess.Popen(
                self.command(self.target),
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self) -> float:
        """Run it to its end; returns the seconds that it took."""
        began = time.monotonic()
        self.check(self.start().wait())
        return time.monotonic() - began

    def check(self, status: int) -> None:
        """Give up, showing what was said, if Snakemake did not succeed."""
        if status:
            raise SystemExit((self.folder / "output.log").read_text(errors="replace"))

    def kill(self, wait_s: float, *, writing: bool) -> str | None:
        """Start it and end it with all its processes `wait_s` later, or in the next save then.

        Returns:
            What it was at; None when it was through before that.
        """
        left = self.half_written()
        running = self.start()
        deadline, latest = time.monotonic() + wait_s, time.monotonic() + 2 * wait_s + 60
        while running.poll() is None:
            now = time.monotonic()
            if now > latest or (now > deadline and not (writing and self.half_written() <= left)):
                break
            time.sleep(POLL_S)
        else:
            self.check(running.returncode)
            return None
        at = "writing a state" if self.half_written() - left else self.stage()
        end_session(running)
        with (self.folder / "output.log").open("ab") as output:
            unlock = self.command("--unlock")
            self.check(subprocess.call(unlock, cwd=ROOT, stdout=output, stderr=output))
        return at

    def half_written(self) -> set[int]:
        """The states that are being written or were left half-written, by inode."""
        found = set()
        for path in (self.folder / "train/states").glob(".step-*.tmp"):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                found.add(path.stat().st_ino)
        return found

    def stage(self) -> str:
        """What is being done, saves aside."""
        if not any(self.folder.glob("data/*/READY")):
            return "data"
        trained = (self.folder / f"train/step-{self.step}/done.json").exists()
        return "export" if trained else "training"


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """SIGKILL to every process of a session, those in groups of their own too."""
    session, deadline = leader.pid, time.monotonic() + ENDS_S
    while members := session_members(session):
        for process in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        leader.poll()
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {members} do not end")
        time.sleep(POLL_S)
    leader.wait()


def session_members(session: int) -> list[int]:
    """The session's processes that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def disturb(pipeline: Pipeline, kills: int, span_s: float, seed: int) -> tuple[list[str], float]:
    """Kill and rerun, then let it end; returns what was killed, and the last attempt's seconds."""
    moments, stages = random.Random(seed), []
    for number in range(kills):
        wait_s = moments.uniform(0, span_s)
        at = pipeline.kill(wait_s, writing=number % 2 == 1)
        if at is None:
            raise SystemExit(
                f"through after {number} kills: more steps or a shorter --span are needed"
            )
        print(f"kill {number + 1}: {at}, {wait_s:.1f} s or more after the start", flush=True)
        stages.append(at)
    return stages, pipeline.finish()


def faults(pipeline: Pipeline, expected: str) -> list[str]:
    """What differs from an undisturbed run."""
    train = pipeline.folder / "train"
    steps = [int(row["step"]) for row in read_csv(train / "train_log.csv")]
    found = []
    if digest_file(pipeline.export) != expected:
        found.append("the export differs from the undisturbed run's")
    if steps != list(range(1, pipeline.step + 1)):
        found.append(f"train_log.csv has {len(steps)} rows, {len(set(steps))} different steps")
    if left := list((train / "states").glob(".*")):
        found.append(f"left behind: {', '.join(path.name for path in left)}")
    return found


def main(arguments: argparse.Namespace) -> None:
    options = (
        *(("--configfile", *arguments.configfile) if arguments.configfile else ()),
        *(("--config", *arguments.config) if arguments.config else ()),
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        whole, killed = (
            Pipeline(Path(folder) / name, arguments.target, options) for name in ("whole", "killed")
        )
        undisturbed_s = whole.finish()
        expected = digest_file(whole.export)
        print(f"undisturbed: {undisturbed_s:.0f} s, {expected}", flush=True)
        stages, last_s = disturb(killed, arguments.kills, arguments.span, arguments.seed)
        found = faults(killed, expected)
        attempts = [
            row for row in read_jsonl(killed.folder / "train/history.jsonl") if "until" in row
        ]
    figures: dict[str, Any] = {
        "target": arguments.target,
        "options": list(options),
        "seed": arguments.seed,
        "kills": dict(sorted(collections.Counter(stages).items())),
        "training attempts": len(attempts),
        "attempts after a crash": sum(bool(row["crashed"]) for row in attempts),
        "sha256": expected,
        "seconds": {"undisturbed": round(undisturbed_s), "after the last kill": round(last_s)},
        "faults": found,
    }
    print_table(("kills while", "number"), [*figures["kills"].items(), ("all", len(stages))])
    name = f"kill-{arguments.label}" if arguments.label else "kill"
    print(write_result(name, "CPU", ("torch", "snakemake"), figures, arguments.out))
    if found:
        raise SystemExit("; ".join(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--span", type=float, default=30.0, help="latest moment, s after a start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="exports/step-600.safetensors")
    parser.add_argument("--configfile", nargs="*")
    parser.add_argument("--config", nargs="*")
    parser.add_argument("--label", default="", help="of the result's file")
    parser.add_argument("--folder", type=Path, help="where both runs go; a temporary one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    main(parser.parse_args())
