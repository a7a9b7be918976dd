"""A full-size training killed and resumed: is all of it as if nothing had been, and what it costs.

Prepares a small data set of 81×480×832 pixels and trains on it with the trainer's own command: a
state after half of the steps, one at their end. Once the last state is whole all processes are
killed at once (kill -9). That state is taken away, and the same command goes on from the first one.
The killed process had trained on undisturbed, so its log rows and its last state, of which every
file's SHA-256 is compared, are what an uninterrupted run gives.

Fails unless both are equal. Prints a table and writes results/resume-<device>-x<processes>.json:
seconds of the start, a step, the stall of a save, until a state is whole, and loading one.
Two states must fit into the folder: of the 5b 60 GB each.

Run: python -m bench.training.resume --size 5b --processes 2 [--folder /fast/disk]
     python -m bench.training.resume --device cpu --size tiny --small [--processes 2] [--out FOLDER]
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.common.recording import Size, write_raw
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.training.kill import end_session
from gc25d.records import digest_json, read_csv, read_json, write_json
from gc25d.settings.steps import TrainStep, step_json
from gc25d.steps import build_index, encode_text, prep_run
from gc25d.train.states.files import open_state
from gc25d.train.states.folder import state_folder
from gc25d.train.states.storage import folder_bytes

RUNS = ("bench__run-000", "bench__run-001")
FULL = Size(81, 480, 832, (480, 832), 2, 8, 81, 1)
SMALL = Size(9, 64, 64, (64, 64), 2, 8, 9, 1)
POLL_S = 0.002
LONGEST_S = 900.0
SAVED = re.compile(r"state of step (\d+): .* stood still for ([\d.]+) s, whole after ([\d.]+) s")
LOADED = re.compile(r"going on from .*, checked and loaded in ([\d.]+) s")
PACKAGES = ("torch", "deepspeed", "accelerate")


@dataclass(frozen=True)
class Training:
    """A run's folder and the command that goes on with it."""

    folder: Path
    command: tuple[str, ...]
    until: int

    def start(self) -> subprocess.Popen[bytes]:
        """The command, as the leader of a session of its own."""
        return subprocess.Popen(self.command, start_new_session=True)

    def rows(self) -> list[dict[str, str]]:
        """The training log so far."""
        return read_csv(self.folder / "train_log.csv")

    def state(self, step: int) -> Path:
        """Where the state of a step is, once it is whole."""
        return state_folder(self.folder / "states", step)

    def log(self) -> str:
        """What the last attempt said so far."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def when(self, reached: Callable[[], bool], trainer: subprocess.Popen[bytes]) -> float:
        """Wait for a moment of its life; returns the seconds that it took."""
        began = time.monotonic()
        while not reached():
            waited = time.monotonic() - began
            if trainer.poll() is not None and reached():
                break
            if trainer.poll() is not None or waited > LONGEST_S:
                end_session(trainer)
                raise SystemExit(f"given up after {waited:.0f} s:\n{self.log()}")
            time.sleep(POLL_S)
        return time.monotonic() - began


def make_data(folder: Path, size: Size, text: Mapping[str, int]) -> Path:
    """Two raw runs → a data set, by the pipeline's own steps; the second one validates."""
    root, settings = folder / "data", folder / "settings"
    geometry = {"frames": size.frames, "height": size.height, "width": size.width}
    encoder = {"encoder": "bytes", "dir": "", **text}
    index = {"val_runs": [RUNS[1]], "buried": [], "limit": 0, "limit_seed": 0}
    batch = {"global_batch": 4, "grad_accum": 1}
    write_json(settings / "prep.json", {"geometry": geometry, "codec": "dct", "codec_dir": ""})
    write_json(settings / "text.json", {"text": encoder})
    write_json(settings / "index.json", {"geometry": geometry, **index, **batch})
    rows = []
    for number, run_id in enumerate(RUNS):
        raw = folder / "raw" / run_id
        write_raw(raw, size, 1000 * number)
        rows.append(root / f"index/runs/{run_id}.jsonl")
        files = {n: root / f"{n}/{run_id}.safetensors" for n in ("latents", "ids")}
        files["record"] = root / f"index/raw/{run_id}.json"
        prep = {"workers": (os.cpu_count() or 1) // 2, "settings": settings / "prep.json"}
        prep_run.main(Namespace(**prep, **files, raw=raw, run_id=run_id, rows=rows[-1]))
    table = root / "text/table.safetensors"
    encode_text.main(Namespace(settings=settings / "text.json", rows=rows, out=table))
    files = {"clips": root / "index/clips.jsonl", "ready": root / "READY", "table": table}
    build_index.main(Namespace(settings=settings / "index.json", rows=rows, root=root, **files))
    return root


def training(folder: Path, data: Path, size: Size, arguments: Namespace) -> Training:
    """What the rules before training leave, and what `train_segment` runs."""
    run = folder / "train"
    text = text_size(arguments)
    train = {
        "global_batch": 2 * arguments.processes,
        "grad_accum": 2,
        "warmup_steps": 2,
        "precision": "bf16",
        "lr": 1e-5,
        "cond_lr": 1e-4,
        "cpu_threads": 1,
    }
    settings = TrainStep.model_validate(
        {
            "geometry": {"frames": size.frames, "height": size.height, "width": size.width},
            **{"text_length": text["length"], "text_dim": text["dim"], "samples": {}},
            **{"model": {"size": arguments.size}, "train": train},
            "validation": {"n": 1, "timesteps": [500]},
        }
    )
    write_json(run / "settings.json", step_json(settings))
    binding = {
        "data_fingerprint": read_json(data / "READY")["fingerprint"],
        "settings_sha256": digest_json(step_json(settings)),
    }
    write_json(run / "binding.json", binding)
    options = options_of(run, data, arguments)
    command = (sys.executable, "-m", "gc25d.steps.train", *options)
    return Training(run, command, arguments.until)


def options_of(run: Path, data: Path, arguments: Namespace) -> list[str]:
    """Of the trainer's command."""
    gpus = arguments.processes if arguments.device == "cuda" else 0
    out = run / f"step-{arguments.until}"
    values = {
        **{"until": arguments.until, "micro-batch": 1, "nodes": 1},
        **{"save-every": arguments.until // 2, "validate-every": arguments.until},
        **{"log-every": 1, "workers": 4, "processes": arguments.processes},
        **{"gpus-per-node": gpus, "engine": arguments.engine, "kernels": arguments.kernels},
        **{"data": data, "log": run / "log.txt", "done": out / "done.json"},
        **{name: run / f"{name}.json" for name in ("settings", "binding")},
        **{name: out / f"{name}.safetensors" for name in ("weights", "probe")},
    }
    return [f"--{name}={value}" for name, value in values.items()]


def text_size(arguments: Namespace) -> dict[str, int]:
    """Rows of a prompt and their width."""
    return {"length": 32, "dim": 16} if arguments.small else {"length": 512, "dim": 4096}


def trained_until_killed(run: Training) -> dict[str, float]:
    """Train to the end and kill everything once the last state is whole."""
    trainer = run.start()
    taken = {"start until the first step": run.when(lambda: bool(run.rows()), trainer)}
    run.when(lambda: f"whole, step {run.until}" in saves(run.log()), trainer)
    end_session(trainer)
    return taken | saves(run.log())


def resumed(run: Training) -> dict[str, float]:
    """Go on from the state in the middle, to the end."""
    middle, trainer = run.until // 2, run.start()

    def resumed_and_stepped() -> bool:
        _, _, since = run.log().partition("going on from")
        return f"step {middle + 1}/{run.until} " in since

    start = run.when(resumed_and_stepped, trainer)
    if trainer.wait(LONGEST_S):
        raise SystemExit(run.log())
    found = LOADED.search(run.log())
    if not found:
        raise SystemExit(f"it did not resume:\n{run.log()}")
    return {"resumed start until the first step": start, "load": float(found[1])}


def saves(log: str) -> dict[str, float]:
    """Seconds of the saves of an attempt: the first one touches its host memory."""
    found = {}
    for step, stall, whole in SAVED.findall(log):
        found |= {f"stall, step {step}": float(stall), f"whole, step {step}": float(whole)}
    return found


def records_of(run: Training) -> Mapping[str, Mapping[str, Any]]:
    """Digests of each process's record of the last state, which has every file's digest."""
    return open_state(run.state(run.until)).records


def log_without_times(run: Training) -> list[dict[str, str]]:
    """The log's rows without what the clock and the memory say."""
    timed = ("step_time", "data_time", "mem_gb")
    return [{k: v for k, v in row.items() if k not in timed} for row in run.rows()]


def measure(folder: Path, arguments: Namespace) -> dict[str, Any]:
    """All figures and what was found to differ."""
    size = SMALL if arguments.small else FULL
    data = make_data(folder, size, text_size(arguments))
    run = training(folder, data, size, arguments)
    taken = trained_until_killed(run)
    print(taken, flush=True)
    records, rows = records_of(run), log_without_times(run)
    steps = [float(row["step_time"]) for row in run.rows()]
    for folder_of_end in (run.state(run.until), run.folder / f"step-{run.until}"):
        shutil.rmtree(folder_of_end, ignore_errors=True)
    taken |= resumed(run)
    faults = []
    if records_of(run) != records:
        faults.append("the state's files differ")
    if log_without_times(run) != rows or len(rows) != run.until:
        faults.append("the logs differ")
    return {
        "size": arguments.size,
        "processes": arguments.processes,
        "steps": run.until,
        "state_gb": folder_bytes([run.state(run.until)]) / 1e9,
        "seconds": taken | {"step": statistics.median(steps[2:])},
        "peak_memory_gb": max(float(row["mem_gb"]) for row in run.rows()),
        "losses": [float(row["loss"]) for row in run.rows()],
        "faults": faults,
    }


def main(arguments: Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=arguments.folder, ignore_cleanup_errors=True) as folder:
        figures = measure(Path(folder), arguments)
    device = torch.device(arguments.device)
    rows = [(name, f"{value:.2f}") for name, value in figures["seconds"].items()]
    print_table(("seconds", "value"), rows)
    label = f"{device_label(device)}-x{arguments.processes}"
    figures |= {"kernels": arguments.kernels, "software": cuda_versions(device)}
    print(write_result("resume", label, PACKAGES, figures, arguments.out))
    if figures["faults"]:
        raise SystemExit("; ".join(figures["faults"]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="5b")
    parser.add_argument("--small", action="store_true", help="clips of 9 frames of 64 x 64 pixels")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--engine", choices=("plain", "deepspeed"), default="deepspeed")
    parser.add_argument("--kernels", choices=("exact", "fastest"), default="exact")
    parser.add_argument("--until", type=int, default=12)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, help="where all of it goes; a temporary folder")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.until % 2:
        parser.error("--until must be even: the first state is taken half-way")
    return arguments


if __name__ == "__main__":
    main(parse())
