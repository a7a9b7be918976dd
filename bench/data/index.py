"""Time and memory of a full-size data set's joins: a dry run of the pipeline, and build_index.

Simulates 256 external runs of 50 clips (files of a few bytes, index rows of the real size) in a
temporary folder, with 10 validation runs and 348 buried clips, at 32 and at 256 runs. Prints a
table and writes results/index-CPU.json. Bounds (256 runs): a dry run 10 s, build_index 30 s.

Run: OMP_NUM_THREADS=1 python -m bench.data.index [--runs 32 256]
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from bench.common.report import print_table, write_result
from gc25d.files import write_text
from gc25d.prep.store import ids_file, latents_file
from gc25d.prep.text import TABLE, ByteEncoder, build_table, write_table
from gc25d.records import write_jsonl
from gc25d.tensors import write_tensors

ROOT = Path(__file__).parents[2]
DATA = Path("data/gc25d_v10")
CLIPS = 50
FRAMES, HEIGHT, WIDTH = 81, 480, 832
MODELS = (
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
    "text/config.json",
    "text/model.safetensors",
    "transformer/model.safetensors",
)
PROMPTS = {f"key{i}": f"The player holds button {i} and walks." for i in range(5)}
RAW_FILES = (
    "frames.tar",
    "stencil.tar",
    "cameras.npz",
    "skeletons.npz",
    "clips_81.json",
    "meta.json",
)


@dataclass(frozen=True)
class Usage:
    """What a process took."""

    seconds: float
    peak_mb: float


def run_name(number: int) -> str:
    return f"castle__run-{number:03d}"


def index_row(run: str, number: int) -> dict[str, Any]:
    """A row as prep_run writes it."""
    clip_id = f"{run}__{FRAMES * number:06d}"
    digests = {
        name: hashlib.sha256(f"{clip_id} {name}".encode()).hexdigest()
        for name in ("latents", "ids", "world_to_clip")
    }
    return {
        "clip_id": clip_id, "run": run, "start": FRAMES * number,
        "shape": [FRAMES, HEIGHT, WIDTH], "drop": False, "reason": "", "faults": [], "flags": [],
        "text_keys": [f"key{(number + cell // 5) % 5}" for cell in range(21)], "prompts": PROMPTS,
        "ground_z": 0.0, "static_share": 0.912345, "character_share": 0.087655,
        "digests": digests,
    }  # fmt: skip


def buried_clips(runs: int) -> list[str]:
    """348 clips at 256 runs: 3 of the first run, which validates, the others of training runs."""
    listed = [f"{run_name(0)}__{FRAMES * i:06d}" for i in range(3)]
    count = 345 * runs // 256
    return listed + [
        f"{run_name(10 + i % (runs - 10))}__{FRAMES * (i // (runs - 10)):06d}" for i in range(count)
    ]


def simulate_captures(folder: Path, runs: int) -> None:
    """External captures, folders of models, and the settings that describe them."""
    for number in range(runs):
        raw = folder / f"captures/day/castle/run-{number:03d}"
        raw.mkdir(parents=True)
        for name in RAW_FILES:
            (raw / name).write_text("{}")
    write_text(folder / "buried.txt", "# unfit\n" + "\n".join(buried_clips(runs)) + "\n")
    for name in MODELS:
        write_text(folder / "models" / name, "{}")
    prep = {
        "val_runs": [run_name(i) for i in range(10)],
        "buried_file": "buried.txt",
        "codec_dir": "models/vae",
        "text": {"dir": "models/text"},
    }
    own = {
        "raw_root": "captures",
        "prep": prep,
        "model": {"init_dir": "models/transformer"},
        "regression": {"init_from": "models/transformer"},
    }
    write_text(folder / "own.yaml", yaml.safe_dump(own))


def simulate_prep(folder: Path, runs: int) -> None:
    """What prep_run and encode_text leave: rows of the real size, tensors of one number."""
    one = torch.zeros(1, dtype=torch.uint8)
    for number in range(runs):
        run = run_name(number)
        rows = [index_row(run, clip) for clip in range(CLIPS)]
        names = [row["clip_id"] for row in rows]
        write_tensors(folder / DATA / latents_file(run), {name: one.clone() for name in names}, {})
        parts = [f"{name}.{part}" for name in names for part in ("ids", "world_to_clip")]
        write_tensors(folder / DATA / ids_file(run), {name: one.clone() for name in parts}, {})
        write_jsonl(folder / DATA / f"index/runs/{run}.jsonl", rows)
    write_table(folder / DATA / TABLE, build_table(PROMPTS, ByteEncoder(64, 64), 64))


def configfiles(folder: Path) -> list[str]:
    return [str(ROOT / "config/full.yaml"), str(folder / "own.yaml")]


def measure(folder: Path, command: list[str]) -> Usage:
    """Run `python -m command` in `folder`; peak memory is that of the process itself.

    Raises:
        RuntimeError: it failed.
    """
    start = time.perf_counter()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[:4]}: {(folder / 'output.txt').read_text()[-2000:]}")
    return Usage(round(time.perf_counter() - start, 2), round(used.ru_maxrss / 1024, 1))


def snakemake(folder: Path, target: str, *options: str) -> Usage:
    """Snakemake with the full configuration."""
    settings = ["--configfile", str(ROOT / "config/config.yaml"), *configfiles(folder)]
    return measure(
        folder,
        ["snakemake", target, *options, "--quiet", "--cores", "1",
         "--snakefile", str(ROOT / "Snakefile"), "--workflow-profile",
         str(ROOT / "profiles/default"), "--directory", str(folder), *settings],
    )  # fmt: skip


def build_index(folder: Path) -> Usage:
    """The step as the rule calls it."""
    rows = sorted((folder / DATA / "index/runs").iterdir())
    return measure(
        folder,
        ["gc25d.steps.build_index", "--settings", str(DATA / "settings/index.json"),
         "--rows", *map(str, rows), "--table", str(DATA / TABLE), "--root", str(DATA),
         "--clips", str(DATA / "index/clips.jsonl"), "--ready", str(DATA / "READY"),
         "--log", "logs/index.log"],
    )  # fmt: skip


def measure_all(folder: Path, runs: int) -> dict[str, Usage]:
    """All figures at one size."""
    simulate_captures(folder, runs)
    figures = {"dry run, nothing built": snakemake(folder, "sft_v10", "-n")}
    for step in ("prep", "text", "index"):
        snakemake(folder, str(DATA / f"settings/{step}.json"))
    simulate_prep(folder, runs)
    figures["build_index"] = build_index(folder)
    figures["dry run, data built"] = snakemake(folder, "sft_v10", "-n")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[32, 256])
    sizes = parser.parse_args().runs
    rows, figures = [], {}
    for runs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure_all(Path(folder), runs)
        rows += [
            (f"{name}, {runs} runs", used.seconds, used.peak_mb) for name, used in measured.items()
        ]
        figures[str(runs)] = {name: vars(used) for name, used in measured.items()}
    print_table(("what", "seconds", "peak MB"), rows)
    packages = ("snakemake", "torch", "pydantic")
    print(write_result("index", "CPU", packages, {"clips_per_run": CLIPS, "runs": figures}))


if __name__ == "__main__":
    main()
