"""Times of alternatives that take turns, with their first call and their peak memory."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

Figures: TypeAlias = dict[str, dict[str, Any]]
GIB = 2**30


def nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Contender:
    """One alternative."""

    model: nn.Module
    """Its weights; what else lies on the device is not counted as its memory."""
    run: Callable[[], object]
    """What is timed. It may leave gradients, which are dropped before the next run."""
    prepare: Callable[[], None] = nothing
    """Called before every run, outside the time."""


def synchronize(device: torch.device) -> None:
    """Wait for what the device still computes."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def release(device: torch.device) -> None:
    """Give the memory of dropped tensors back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def race(contenders: Mapping[str, Contender], device: torch.device, repeats: int) -> Figures:
    """Seconds of each contender: first call, then medians over `repeats` rounds of turns.

    A contender that fails, as when it does not fit the device's memory, gets one entry "error".
    """
    found: Figures = {}
    for name, contender in contenders.items():
        found[name] = _first_calls(contender, device)
        print(f"  {name}: {found[name]}", flush=True)
    running = {n: c for n, c in contenders.items() if "error" not in found[n]}
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(repeats):
        for name, contender in running.items():
            # A GPU at its power limit owes some of its speed to what ran before: once untimed.
            _turn(contender, device)
            times[name].append(_turn(contender, device))
    for name, taken in times.items():
        found[name] |= {"s": statistics.median(taken), "best_s": min(taken), "repeats": repeats}
        print(f"  {name}: {found[name]['s']:.4f} s", flush=True)
    return found


def _turn(contender: Contender, device: torch.device) -> float:
    contender.prepare()
    taken = seconds(contender.run, device)
    contender.model.zero_grad(set_to_none=True)
    return taken


def _first_calls(contender: Contender, device: torch.device) -> dict[str, Any]:
    """The first call compiles and tunes; the second one's peak memory is that of all others.

    The second finds the first one's gradients, as a micro-batch finds those before it in a step.
    """
    others = _allocated(device) - parameter_bytes([contender.model])
    try:
        contender.prepare()
        first = seconds(contender.run, device)
        release(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        _turn(contender, device)
    except RuntimeError as error:  # the rest of a run on a borrowed GPU is worth having
        contender.model.zero_grad(set_to_none=True)
        release(device)
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"first_s": first, "peak_gib": _peak_gib(device, others)}


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak_gib(device: torch.device, others: int) -> float | None:
    if device.type != "cuda":
        return None
    return (torch.cuda.max_memory_allocated(device) - others) / GIB


def parameter_bytes(models: Iterable[nn.Module]) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for model in models for p in model.parameters())
