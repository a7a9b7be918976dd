"""How long the prep step reads and encodes a run: its parts alone, and together."""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common.recording import Size, clip_of
from gc25d.prep.encoders.wan_vae import WanVaeCodec
from gc25d.prep.prepare import prepare_run
from gc25d.prep.reading.read import RawRun
from gc25d.prep.reading.readers import readings
from gc25d.records import write_json

RUN_ID = "bench__run-000"
RUNS, AT_ONCE = 8, 4
"""Of the measurement of several: runs, and how many of them are prepared at a time."""


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def reading_times(raw: Path, size: Size, workers: int) -> dict[str, float]:
    """Seconds a clip of reading: CPU seconds of one process, and `workers` processes by the clock.

    Once running: from the first clip to the last.
    """
    run = RawRun.open(raw, RUN_ID, *size.clip_shape)
    clips = run.clips()
    alone = []
    stream = readings(run, clips[: 1 + size.repeats], 0)
    for _ in range(1 + size.repeats):  # the first one touches memory that the others find
        start = time.process_time()
        next(stream).release()
        alone.append(time.process_time() - start)
    arrivals = []
    start = time.perf_counter()
    for reading in readings(run, clips, workers):
        arrivals.append(time.perf_counter() - start)
        reading.release()
    return {
        "reading, CPU seconds of one core": statistics.median(alone[1:]),
        f"reading, {workers} processes, once running": (arrivals[-1] - arrivals[0])
        / (len(clips) - 1),
        f"reading, {workers} processes, start included": arrivals[-1] / len(clips),
        f"reading, {workers} processes, until the first clip": arrivals[0],
    }


@dataclass
class Watched:
    """A codec that notes when each clip was begun and done."""

    codec: WanVaeCodec
    begun: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)

    def encode(self, frames: np.ndarray) -> torch.Tensor:
        """The codec's, timed."""
        self.begun.append(time.perf_counter())
        latents = self.codec.encode(frames)
        self.done.append(time.perf_counter())
        return latents

    def decode(self, latents: torch.Tensor) -> np.ndarray:
        """The codec's."""
        return self.codec.decode(latents)


def step_times(folder: Path, size: Size, device: str, workers: int) -> dict[str, float]:
    """Seconds a clip: encoder alone, reading and encoding, the whole step.

    Once running: from the beginning of the first clip's encoding to the end of the last one's. The
    whole step is a process of its own, as the pipeline starts it, its imports, weights and (the
    first time) compilation included.
    """
    codec = WanVaeCodec.load(folder / "vae", device)
    frames = clip_of(size, size.frames)
    codec.encode(frames)
    encoder = statistics.median(seconds(codec.encode, frames) for _ in range(size.repeats))
    watched = Watched(codec)
    arguments = folder / "raw", RUN_ID, *size.clip_shape, lambda: watched, workers
    both = seconds(prepare_run, *arguments)
    running = (watched.done[-1] - watched.begun[0]) / size.listed
    print(f"encoder {encoder:.3f} s a clip, with reading {both / size.listed:.3f}", flush=True)
    first, again = (seconds(whole_step, folder, size, workers) for _ in range(2))
    print(f"the whole step {first:.1f} s, again {again:.1f} s", flush=True)
    several = seconds(several_runs, folder, size, workers)
    return {
        "workers": float(workers),
        "encoder alone": encoder,
        "reading and encoding, once running": running,
        "reading and encoding": both / size.listed,
        "the whole step, start included": first / size.listed,
        "the whole step again, compiled before": again / size.listed,
        "seconds of start in the latter": again - running * size.listed,
        "share of the encoder's own speed, once running": encoder / running,
        "share of the encoder's own speed, whole step": encoder * size.listed / again,
        f"several runs, {AT_ONCE} at a time, start included": several / (size.listed * RUNS),
        "share of the encoder's own speed, several runs": encoder * size.listed * RUNS / several,
    }


def several_runs(folder: Path, size: Size, workers: int) -> None:
    """As Snakemake runs them on the cores that one run's job of `workers` processes takes."""
    each = max(1, (workers + 1) // AT_ONCE - 1)
    with ThreadPoolExecutor(AT_ONCE) as jobs:
        for _ in jobs.map(lambda number: whole_step(folder, size, each, number), range(RUNS)):
            pass


def whole_step(folder: Path, size: Size, workers: int, number: int = 0) -> None:
    """The step as the pipeline starts it; the device is its own choice."""
    geometry = {"frames": size.frames, "height": size.height, "width": size.width}
    settings = {"geometry": geometry, "codec": "wan_vae", "codec_dir": str(folder / "vae")}
    write_json(folder / "prep.json", settings)
    out = folder / f"data-{number}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "gc25d.steps.prep_run", "--settings", folder / "prep.json"]
    command += ["--raw", folder / "raw", "--run-id", RUN_ID, "--workers", workers]
    for name in ("latents", "ids", "rows", "record", "log"):
        command += [f"--{name}", out / name]
    subprocess.run(list(map(str, command)), check=True)
