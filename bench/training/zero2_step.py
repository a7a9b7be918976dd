"""A whole optimizer step of the 5B model under ZeRO-2, and what a full state costs.

Starts one process a GPU with the trainer's own launcher. Each of them takes the trainer's own
steps (`Segment.optimizer_step`: two micro-batches of one sample, forward and backward, clipping,
AdamW, the logged means) on random samples of 81×480×832, drawn ahead as by the trainer's feed.
Reports the seconds of a step among others, as in training, and of one that the device is waited
for after, its parts when each waits, the first step with an empty compiler cache and, in new
processes, with a filled one, and the peak memory of a GPU. Then saves a state: how long training
stands still, steps while it is written, until it is whole on disk, and loading it. Prints a table
and writes zero2-step-<device>-x<processes>.json. Target: 1.20 s on 2 H200.

Memory: one H200 holds the 5B model alone only with `--recompute all`. Two states (60 GB each) must
fit into the folder; `--no-state` leaves them out, `--layers` makes everything smaller.

Run: python -m bench.training.zero2_step --processes 2 [--recompute none] [--folder /fast/disk]
     [--no-state] [--layers 30] [--repeats 8] [--device cpu --tiny] [--out FOLDER]
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch

from bench.common.flops import TERA, model_work
from bench.common.micro import Size, chosen_size, fill_model, key_rows, micro_batch
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.common.timing import seconds, synchronize
from gc25d.dataset.batch import Batch
from gc25d.methods.finetune import FinetuneMethod
from gc25d.model.execution import compile_blocks, set_recompute
from gc25d.model.wan.transformer import WanModel
from gc25d.records import read_json, write_json
from gc25d.train.feed import MicroBatch
from gc25d.train.loop import Cadence, Segment
from gc25d.train.processes.launch import Layout, run_processes
from gc25d.train.states.folder import newest_state
from gc25d.train.states.reader import load_state, shapes_of
from gc25d.train.states.writer import StateWriter
from gc25d.train.validate import Validation
from gc25d.train.zero.engine import ZeroEngine

ACCUMULATED = 2
"""Micro-batches of an optimizer step on each GPU."""
BINDING = "bench"
PACKAGES = ("torch", "deepspeed", "accelerate")


def main() -> None:
    arguments = parse()
    if arguments.figures:
        worker(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, ignore_cleanup_errors=True) as folder:
        figures = {"software": cuda_versions(torch.device(arguments.device))}
        figures |= measure(arguments, Path(folder))
    show(figures)
    label = f"{device_label(torch.device(arguments.device))}-x{arguments.processes}"
    print(write_result("zero2-step", label, PACKAGES, figures, arguments.out))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--recompute", choices=("none", "half", "all"), default="none")
    parser.add_argument("--kernels", choices=("exact", "fastest"), default="fastest")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--no-state", dest="state", action="store_false")
    parser.add_argument("--folder", type=Path, help="for states; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the processes twice: everything, then the first step with the cache that is left."""
    layout = Layout(1, arguments.processes, arguments.device == "cuda")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    given = [*sys.argv[1:], "--figures", str(folder / "figures.json")]
    given += ["--folder", str(folder)]
    found: list[dict[str, Any]] = []
    for extra in ([], ["--repeats", "0", "--no-state"]):
        status = run_processes(
            [sys.executable, "-m", "bench.training.zero2_step", *given, *extra], layout
        )
        if status:
            raise SystemExit(f"a process ended with status {status}")
        found.append(cast(dict[str, Any], read_json(folder / "figures.json")))
    whole, again = found
    whole["seconds"]["first step, warm cache"] = again["seconds"]["first step"]
    return whole


def worker(arguments: argparse.Namespace) -> None:
    """One process; the first one writes the figures."""
    size = chosen_size(tiny=arguments.tiny, layers=arguments.layers)
    began = time.perf_counter()
    batch = ACCUMULATED * arguments.processes
    gpu, exact = arguments.device == "cuda", arguments.kernels == "exact"
    engine = ZeroEngine("bf16", 1, batch, 1, gpu=gpu, exact=exact)
    method = prepared_method(size, engine, arguments.recompute)
    taken = {"start": time.perf_counter() - began}
    segment = trainer(method, engine)
    feed = samples(size, engine, method)
    taken["first step"] = steps(segment, feed, 1)[0]
    memory = {"start": engine.memory_gb()}
    if engine.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if arguments.repeats:
        steps(segment, feed, 1)
        taken["step"] = steady(segment, feed, arguments.repeats)
        times = steps(segment, feed, arguments.repeats)
        taken |= {"a step by itself": statistics.median(times), "best by itself": min(times)}
        taken |= parts_of_a_step(segment, feed)
    memory["steps"] = engine.memory_gb()
    if arguments.state:
        taken |= state_seconds(segment, feed, arguments.folder / "states", arguments.repeats)
    if engine.rank == 0:
        work = model_work(
            size.config,
            size.tokens,
            len(size.text_lengths),
            key_rows(micro_batch(size, size.text_lengths, torch.device("cpu"))),
            timesteps=2,
            condition=True,
        )
        figures = {
            "processes": engine.world_size,
            "recompute": arguments.recompute,
            "size": size.describe(),
            "tflop_per_gpu": ACCUMULATED * work.training / TERA,
            "peak_memory_gb": memory,
            "seconds": taken,
        }
        write_json(arguments.figures, figures)
    engine.close()


def prepared_method(size: Size, engine: ZeroEngine, recompute: Any) -> FinetuneMethod:
    """The method on a compiled model with random fp32 weights, in the engine's hands."""
    with torch.device("meta"):
        model = WanModel(size.config)
    fill_model(model, engine.start_device, torch.float32)
    if engine.device.type == "cuda":
        compile_blocks(model)
    set_recompute(model, recompute)
    method = FinetuneMethod(model, seed=0)
    engine.prepare(method)
    method.on_train_start()
    return method


def trainer(method: FinetuneMethod, engine: ZeroEngine) -> Segment:
    """The trainer's loop, of which steps alone are taken: it never saves and never validates."""
    never = Cadence(until=1, save_every=1, validate_every=1)
    validation = cast(Validation, None)
    return Segment(method, engine, validation, never, 1.0, lambda step: None, lambda: False)


def samples(size: Size, engine: ZeroEngine, method: FinetuneMethod) -> Iterator[MicroBatch]:
    """Micro-batches without end, of a few samples that lie in host memory already, with draws."""
    ready = [host_batch(size, engine, method, seed) for seed in range(2 * ACCUMULATED)]
    share = 1 / (ACCUMULATED * engine.world_size)
    number = 0
    while True:
        step, part = divmod(number, ACCUMULATED)
        last = part == ACCUMULATED - 1
        yield MicroBatch(step, 0, share, last, ready[number % len(ready)])
        number += 1


def host_batch(size: Size, engine: ZeroEngine, method: FinetuneMethod, seed: int) -> Batch:
    """A sample of this process with its draws, page-locked where there is a GPU."""
    seed += 100 * engine.rank
    batch = micro_batch(size, size.text_lengths, torch.device("cpu"), seed)
    batch = method.draw_ahead(batch)
    return batch.pin_memory() if engine.device.type == "cuda" else batch


def steady(segment: Segment, feed: Iterator[MicroBatch], count: int) -> float:
    """Seconds of a step among others: the device is waited for after the last one alone."""

    def run() -> None:
        for _ in range(count):
            segment.optimizer_step(1, feed)

    return seconds(run, segment.engine.device) / count


def steps(segment: Segment, feed: Iterator[MicroBatch], count: int) -> list[float]:
    """Seconds of so many optimizer steps, each by itself: the device's work included."""
    device = segment.engine.device
    return [seconds(lambda: segment.optimizer_step(1, feed), device) for _ in range(count)]


def parts_of_a_step(segment: Segment, feed: Iterator[MicroBatch]) -> dict[str, float]:
    """Seconds of an optimizer step's parts, each of which waits for the device."""
    engine, method = segment.engine, segment.method
    parts = {
        "forward": (method, "single_train_step"),
        "backward": (engine, "backward"),
        "clip": (engine, "clip"),
        "update": (method, "optimizers_schedulers_step"),
    }
    taken = dict.fromkeys((f"of it, {part}" for part in parts), 0.0)
    with contextlib.ExitStack() as patched:
        for part, (owner, name) in parts.items():
            label, original = f"of it, {part}", getattr(owner, name)

            def timed(
                *arguments: Any, original: Any = original, label: str = label, **named: Any
            ) -> Any:
                began = time.perf_counter()
                result = original(*arguments, **named)
                synchronize(engine.device)
                taken[label] += time.perf_counter() - began
                return result

            patched.enter_context(mock.patch.object(owner, name, timed))
        steps(segment, feed, 1)
    return taken


def state_seconds(
    segment: Segment, feed: Iterator[MicroBatch], root: Path, repeats: int
) -> dict[str, float]:
    """Save a state while training goes on, and load it."""
    engine, method = segment.engine, segment.method
    device, world = engine.device, engine.world_size
    share = engine.fragments(method)
    writer = StateWriter(root, engine.rank, world, processes_per_host=engine.processes_per_host)
    taken = {"host memory": seconds(lambda: writer.prepare(share, 0, BINDING), device)}
    began = time.perf_counter()
    taken["stall of a save"] = seconds(
        lambda: writer.save(1, share, binding=BINDING, checkpoint=False), device
    )
    copies = [fragment.values.clone() for fragment in share[:4]]
    taken["step while writing"] = steady(segment, feed, max(2, repeats // 2))
    writer.wait()
    taken["until whole"] = time.perf_counter() - began
    engine.barrier()
    taken["load"] = seconds(lambda: load(engine, method, share, root), device)
    if not all(torch.equal(a, f.values) for a, f in zip(copies, share, strict=False)):
        raise SystemExit("the loaded state is not the saved one")
    steps(segment, feed, 1)
    engine.barrier()
    if engine.rank == 0:
        shutil.rmtree(root)
    return taken


def load(engine: Any, method: FinetuneMethod, share: Any, root: Path) -> None:
    """What a resume does: find the newest state, check it, read this process's part."""
    state = engine.gather(newest_state([root], 1, BINDING) if engine.rank == 0 else None)[0]
    shapes = {k: v for held in engine.gather(shapes_of(share)) for k, v in held.items()}
    load_state(state, share, shapes)
    engine.after_load(method)


def show(figures: dict[str, Any]) -> None:
    """The table."""
    print(
        f"{figures['processes']} processes, recompute {figures['recompute']}, "
        f"{figures['tflop_per_gpu']:.4g} TFLOP a GPU and step, "
        f"peak {figures['peak_memory_gb']['steps']:.1f} GB"
    )
    rows = [(name, f"{value:.3f}") for name, value in figures["seconds"].items()]
    print_table(("", "seconds"), rows)


if __name__ == "__main__":
    main()
