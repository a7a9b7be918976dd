"""A 5B micro-batch, forward and backward, and a sampling step: ours, diffusers', and the floor.

One sample of 81×480×832 (8,190 tokens) on one GPU, in one run:

- ceilings: bf16 matrix products at the model's shapes, attention with cuDNN and flash;
- the floor: operations by formula (bench/common/flops.py) at those ceilings;
- ours: the `finetune` method's `single_train_step` and `backward`, semantic condition included,
  5 distinct prompts of up to 64 tokens in a table of 512 rows: eager, and compiled blocks of which
  none, half or all recompute their activations, any kernels or deterministic ones alone; with
  4 other prompts, for which shapes became dynamic; with 21 distinct prompts of 512 tokens; a
  sampling step;
- the peer, diffusers' transformer of the same size with one prompt of 512 rows: as shipped (eager,
  gradient checkpointing) and at its best (compiled blocks, our choice of attention kernels before
  compilation, no checkpointing); a sampling step.

All parameters and gradients are bf16, as ZeRO-2 holds them on a GPU; its fp32 masters lie in the
optimizer. Weights are random. The alternatives of a group take turns; seconds are medians. The
first call compiles with an empty cache, and once more in a second process that finds it filled.
Peak memory is that of weights, gradients and activations, without the idle model's weights; beside
it stands what the trainer estimates (gc25d/model/memory.py).
Prints a table and writes microbatch-<device>.json.

Run: python -m bench.model.microbatch [--only ours,peer,ceilings] [--layers 30] [--repeats 9]
     [--device cpu --tiny] [--out FOLDER]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.common.flops import TERA, Ceilings, Work, model_work
from bench.common.micro import Size, chosen_size, key_rows, micro_batch
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.common.timing import GIB, Contender, Figures, race, release, seconds
from bench.model.ceilings import measure_ceilings
from bench.model.ours import Ours
from bench.model.peers import Peer
from gc25d.dataset.batch import Batch
from gc25d.model.memory import Recompute, activation_bytes
from gc25d.model.wan.transformer import WanModel

PARTS = ("ours", "peer", "ceilings")
CACHE = "TORCHINDUCTOR_CACHE_DIR"
PACKAGES = ("torch", "diffusers")
REPEATABLE = "ours, compiled, deterministic kernels"
OURS, BEST = "ours, compiled", "diffusers, at its best"
SAMPLING, OTHER, DISTINCT = "sampling step", "other prompts", "distinct prompts"
EAGER = "ours, eager"
POLICIES: dict[str, tuple[Recompute, bool]] = {
    EAGER: ("none", False),
    OURS: ("none", True),
    f"{OURS}, recompute half": ("half", True),
    f"{OURS}, recompute all": ("all", True),
}
"""What is recomputed, and whether blocks are compiled."""


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic kernels want it
    arguments = parse()
    device = torch.device(arguments.device)
    size = chosen_size(tiny=arguments.tiny, layers=arguments.layers)
    if arguments.warm:
        print(json.dumps(first_calls(arguments.only, size, device)))
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ[CACHE] = cache
        figures = measure(arguments, size, device)
    show(figures)
    print(write_result("microbatch", device_label(device), PACKAGES, figures, arguments.out))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--warm", action="store_true", help="first calls only, as the run itself")
    arguments = parser.parse_args()
    unknown = set(arguments.only) - set(PARTS)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: choose from {','.join(PARTS)}")
    return arguments


def measure(arguments: argparse.Namespace, size: Size, device: torch.device) -> dict[str, Any]:
    """All figures; those of parts that were not asked for are left out."""
    ceilings, rates = None, {}
    if "ceilings" in arguments.only:
        ceilings, rates = measure_ceilings(size.config, size.tokens, device, arguments.repeats)
        print(rates, flush=True)
    times = race_all(arguments.only, size, device, arguments.repeats)
    release(device)
    for name, first in warm_calls(arguments).items():
        times[name]["first_warm_s"] = first
    work = works(size)
    for name, entry in times.items():
        entry.update(against_floor(name, entry, work, ceilings))
        if name in POLICIES:
            entry["formula_gib"] = formula_gib(size, *POLICIES[name])
    return {
        "software": cuda_versions(device),
        "parameters": "bf16",
        "size": size.describe(),
        "ceilings_tflops_per_s": rates,
        "seconds": times,
    }


def race_all(parts: list[str], size: Size, device: torch.device, repeats: int) -> Figures:
    """Groups of alternatives: eager, compiled, sampling, and other prompts."""
    batch = micro_batch(size, size.text_lengths, device)
    ours = Ours(size, device) if "ours" in parts else None
    peer = Peer(size, device) if "peer" in parts else None
    found: Figures = {}
    for name, group in {
        "eager": eager_group,
        "compiled": compiled_group,
        "sampling": sampling_group,
        "other prompts": other_prompts_group,
    }.items():
        print(name, flush=True)
        found |= race(group(ours, peer, size, batch), device, repeats)
    return found


def eager_group(
    ours: Ours | None, peer: Peer | None, size: Size, batch: Batch
) -> dict[str, Contender]:
    """As written, nothing compiled."""
    group = {}
    if ours:
        group[EAGER] = Contender(ours.model, ours.train(batch), ours.mode())
    if peer:
        run = peer.train(batch, best_attention=False)
        group["diffusers, as shipped"] = Contender(peer.model, run, peer.mode(checkpointing=True))
    return group


def compiled_group(
    ours: Ours | None, peer: Peer | None, size: Size, batch: Batch
) -> dict[str, Contender]:
    """Compile the blocks; both models stay compiled from here on."""
    group = {}
    if ours:
        ours.compile()
        run = ours.train(batch)
        group[OURS] = Contender(ours.model, run, ours.mode())
        group[REPEATABLE] = Contender(ours.model, run, ours.mode(deterministic=True))
    if peer:
        peer.compile()
        run = peer.train(batch, best_attention=True)
        group[BEST] = Contender(peer.model, run, peer.mode(checkpointing=False))
    if ours:
        for policy in ("half", "all"):
            name = f"{OURS}, recompute {policy}"
            group[name] = Contender(ours.model, ours.train(batch), ours.mode(policy))
    return group


def sampling_group(
    ours: Ours | None, peer: Peer | None, size: Size, batch: Batch
) -> dict[str, Contender]:
    """Forward passes without gradients."""
    group = {}
    if ours:
        group[f"{OURS}, {SAMPLING}"] = Contender(ours.model, ours.sample(batch), ours.mode())
    if peer:
        group[f"{BEST}, {SAMPLING}"] = Contender(
            peer.model, peer.sample(batch), peer.mode(checkpointing=False)
        )
    return group


def other_prompts_group(
    ours: Ours | None, peer: Peer | None, size: Size, batch: Batch
) -> dict[str, Contender]:
    """Other numbers of prompts and rows than before, for which the compiler generalises."""
    if not ours:
        return {}
    lengths = {OTHER: size.other_lengths, f"{size.frames} {DISTINCT}": size.all_distinct}
    batches = {
        name: micro_batch(size, chosen, batch.latents.device) for name, chosen in lengths.items()
    }
    return {
        f"{OURS}, {name}": Contender(ours.model, ours.train(own), ours.mode())
        for name, own in batches.items()
    }


def first_calls(parts: list[str], size: Size, device: torch.device) -> dict[str, float]:
    """Seconds of the first compiled micro-batch of each model."""
    batch = micro_batch(size, size.text_lengths, device)
    found = {}
    if "ours" in parts:
        ours = Ours(size, device)
        ours.compile()
        found[OURS] = seconds(ours.train(batch), device)
    if "peer" in parts:
        peer = Peer(size, device)
        peer.compile()
        found[BEST] = seconds(peer.train(batch, best_attention=True), device)
    return found


def warm_calls(arguments: argparse.Namespace) -> dict[str, float]:
    """`first_calls` in a second process, which finds what this one compiled."""
    parts = [part for part in arguments.only if part != "ceilings"]
    if not parts:
        return {}
    command = [sys.executable, "-m", "bench.model.microbatch", "--warm", "--only", ",".join(parts)]
    command += ["--device", arguments.device]
    command += ["--layers", str(arguments.layers)] if arguments.layers else []
    command += ["--tiny"] if arguments.tiny else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def works(size: Size) -> dict[str, Work]:
    """Operations of the peer's pass, and of ours with each set of prompts."""
    found = {
        "diffusers": model_work(size.config, size.tokens, 1, size.text_rows, 1, condition=False)
    }
    ours = {DISTINCT: size.all_distinct, OTHER: size.other_lengths, "ours": size.text_lengths}
    for name, lengths in ours.items():
        rows = key_rows(micro_batch(size, lengths, torch.device("cpu")))
        found[name] = model_work(size.config, size.tokens, len(lengths), rows, 2, condition=True)
    return found


def against_floor(
    name: str, entry: dict[str, Any], work: dict[str, Work], ceilings: Ceilings | None
) -> dict[str, float]:
    """Operations of an alternative, the floor, and the floor's share of its time."""
    own = work[next(key for key in (DISTINCT, OTHER, "ours", "diffusers") if key in name)]
    sampling = name.endswith(SAMPLING)
    operations = own.sampling if sampling else own.training
    found = {"tflop": operations / TERA}
    if ceilings and "s" in entry:
        floor = own.sampling_floor(ceilings) if sampling else own.training_floor(ceilings)
        found |= {"floor_s": floor, "of_floor": floor / entry["s"]}
    return found


def formula_gib(size: Size, policy: Recompute, compiled: bool) -> float:
    """The trainer's estimate (gc25d/model/memory.py) with bf16 weights and gradients."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in WanModel(size.config).parameters())
    activations = activation_bytes(size.config, size.tokens, policy, compiled=compiled)
    return (2 * 2 * parameters + activations) / GIB


def show(figures: dict[str, Any]) -> None:
    """The table."""
    columns = {
        "s": ("seconds", "{:.3f}"),
        "best_s": ("best", "{:.3f}"),
        "tflop": ("TFLOP", "{:.4g}"),
        "floor_s": ("floor", "{:.3f}"),
        "of_floor": ("floor/time", "{:.0%}"),
        "peak_gib": ("peak GiB", "{:.1f}"),
        "formula_gib": ("formula", "{:.1f}"),
        "first_s": ("first, cold", "{:.1f}"),
        "first_warm_s": ("first, warm", "{:.1f}"),
    }
    header = ["", *(title for title, _ in columns.values())]
    rows = [
        [name, *(cell(entry.get(key), form) for key, (_, form) in columns.items())]
        for name, entry in figures["seconds"].items()
    ]
    print_table(header, rows)
    for name, entry in figures["seconds"].items():
        if "error" in entry:
            print(f"{name}: {entry['error']}")


def cell(value: float | None, form: str) -> str:
    """A figure, or a dash for one that was not taken."""
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    main()
