"""How long saving a full training state stops training, against accelerate's save_state.

fp32 weights and AdamW moments of a Wan of the given size, on one device, saved to one folder, one
after the other: (a) ours: the wait until training goes on, the time of a step while the state is
written, the time until it is whole and fsynced, and loading it; (b) accelerate save_state, which
training waits for in full (its files are fsynced here too). Between the saves a step is a chain of
matrix products. Prints a table and writes results/state-<DEVICE>.json.
Target on an H200: a 65 GB state stops training for 10 s at most.

Two states must fit into the folder: of the 5b 2 GB a layer each, 60 GB for its 30 layers.

Run: python -m bench.training.state --size 5b [--layers 12] [--folder /fast/disk] [--no-peer]
     OMP_NUM_THREADS=1 python -m bench.training.state --size 1.3b --layers 2
"""

import argparse
import dataclasses
import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import AdamW

from bench.common.report import cuda_versions, device_label, print_table, write_result
from gc25d.files import fsync
from gc25d.model.wan.transformer import WanModel
from gc25d.model.zoo import SIZES
from gc25d.train.states.folder import newest_state
from gc25d.train.states.fragments import Fragment, total_bytes
from gc25d.train.states.reader import load_state
from gc25d.train.states.writer import StateWriter

STEPS = 20


def trained(size: str, layers: int | None, device: torch.device) -> tuple[WanModel, AdamW]:
    """A model with moments; the values do not matter, only that none repeats."""
    config = SIZES[size]
    with torch.device("meta"):
        model = WanModel(
            dataclasses.replace(config, vocab="parts", num_layers=layers or config.num_layers)
        )
    model.to_empty(device=device)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
            optimizer.state[parameter] = {
                "step": torch.tensor(7.0),
                "exp_avg": torch.randn_like(parameter),
                "exp_avg_sq": torch.rand_like(parameter),
            }
    return model, optimizer


def fragments(model: nn.Module, optimizer: AdamW) -> list[Fragment]:
    """As the trainer's own engine gives them."""
    return [
        Fragment(f"student/{name}:{kind}", tuple(values.shape), 0, values.detach().view(-1))
        for name, parameter in model.named_parameters()
        for kind, values in {"weight": parameter, **optimizer.state[parameter]}.items()
    ]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(action: Callable[[], object], device: torch.device) -> float:
    """Wall time of an action, the device's work included."""
    synchronize(device)
    began = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - began


def step_seconds(device: torch.device) -> list[float]:
    """Steps of about 0.2 s on an H200 (128 products of 8192²); one product of 1024² on a core."""
    size, count = (8192, 128) if device.type == "cuda" else (1024, 1)
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16) / size**0.5

    def step() -> None:
        product = matrix
        for _ in range(count):
            product = product @ matrix

    step()
    return [seconds(step, device) for _ in range(STEPS)]


def ours(root: Path, model: nn.Module, optimizer: AdamW, device: torch.device) -> dict[str, float]:
    """Save twice (the second one into memory that is there already), load once."""
    share = fragments(model, optimizer)
    writer = StateWriter(root)
    taken = {"prepare": seconds(lambda: writer.prepare(share, 0, "bench"), device)}
    alone = statistics.median(step_seconds(device))
    for step, label in ((1, "first"), (2, "second")):
        began = time.perf_counter()
        taken[f"stall_{label}"] = seconds(
            functools.partial(writer.save, step, share, binding="bench", checkpoint=False), device
        )
        during = statistics.median(step_seconds(device))
        writer.wait()
        taken[f"whole_{label}"] = time.perf_counter() - began
        shutil.rmtree(root / f"step-{step - 1:07d}", ignore_errors=True)
    kept = [fragment.values.clone() for fragment in share[:4]]
    state = None

    def find() -> None:
        nonlocal state
        state = newest_state([root], 2, "bench")

    taken["check_digests"] = seconds(find, device)
    assert state is not None
    taken["load"] = seconds(lambda: load_state(state, share), device)
    assert all(torch.equal(a, f.values) for a, f in zip(kept, share, strict=False))
    return {**taken, "step_alone": alone, "step_while_writing": during}


def peer(root: Path, model: nn.Module, optimizer: AdamW, device: torch.device) -> float:
    """Accelerate's save_state, brought to disk as ours is."""
    accelerator = Accelerator(cpu=device.type == "cpu")
    accelerator.prepare(model, optimizer)

    def save() -> None:
        accelerator.save_state(str(root))
        for path in root.rglob("*"):
            fsync(path)

    return seconds(save, device)


def main(arguments: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(os.cpu_count() or 1 if device.type == "cuda" else 1)
    model, optimizer = trained(arguments.size, arguments.layers, device)
    size = total_bytes(fragments(model, optimizer))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        taken = ours(Path(folder) / "ours", model, optimizer, device)
        shutil.rmtree(Path(folder) / "ours")
        if arguments.peer:
            taken["accelerate_save_state"] = peer(Path(folder) / "peer", model, optimizer, device)
    print(f"{arguments.size}, {model.config.num_layers} layers, {size / 1e9:.2f} GB")
    print_table(("seconds", "value"), [(name, f"{value:.3f}") for name, value in taken.items()])
    figures = {
        "size": arguments.size,
        "layers": model.config.num_layers,
        "state_gb": round(size / 1e9, 3),
        "seconds": {name: round(value, 4) for name, value in taken.items()},
        **cuda_versions(device),
    }
    print(write_result("state", device_label(device), ("torch", "accelerate"), figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="5b")
    parser.add_argument("--layers", type=int, help="fewer than the size has, for a smaller disk")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    main(parser.parse_args())
