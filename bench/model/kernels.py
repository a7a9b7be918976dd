"""Where the GPU's time goes in a micro-batch of the 5B model: kernels by kind, and its idle time.

Traces one micro-batch of ours and of diffusers at its best, after both have been compiled, and
prints for each: the span from the first kernel to the last, the time that the device computes,
what it idles and where, and its kernels, most costly first. Writes kernels-<device>.json.
Figures under the profiler are a few per cent above those of bench/model/microbatch.py.

Run: python -m bench.model.kernels [--only ours,peer] [--layers 30] [--out FOLDER]
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.common.micro import chosen_size, micro_batch
from bench.common.report import RESULTS, cuda_versions, device_label, print_table, write_result
from bench.model.ours import Ours
from bench.model.peers import Peer

KINDS = {
    "matrix products": ("nvjet", "gemm", "cutlass::Kernel", "splitK"),
    "attention": ("sdpa", "flash", "flex_attention", "cudnn::fusion", "convert_dq", "dot_do_o"),
    "norms with what follows": ("_norm_rope", "_norm_modulate"),
    "compiled pointwise and sums": ("triton_",),
}
"""What the names of a kind's kernels hold; the first kind that fits counts."""
OTHER = "other"
LISTED = 40


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy on the device; microseconds."""

    name: str
    start: float
    end: float


def summary(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Milliseconds by kind, span, idle time and the longest gaps; kernels may overlap."""
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    first = end = ordered[0].start
    busy, gaps, kinds, names = 0.0, [], Counter[str](), Counter[str]()
    counts = Counter(kernel.name for kernel in kernels)
    for kernel in ordered:
        if kernel.start > end:
            gaps.append((kernel.start - end, end - first, kernel.name))
        busy += max(0.0, kernel.end - max(kernel.start, end))
        end = max(end, kernel.end)
        kinds[kind_of(kernel.name)] += kernel.end - kernel.start
        names[kernel.name] += kernel.end - kernel.start
    return {
        "span_ms": (end - first) / 1e3,
        "busy_ms": busy / 1e3,
        "idle_ms": sum(gap for gap, _, _ in gaps) / 1e3,
        "kinds_ms": {kind: spent / 1e3 for kind, spent in kinds.most_common()},
        "gaps": [
            {"ms": gap / 1e3, "at_ms": at / 1e3, "before": name[:80]}
            for gap, at, name in sorted(gaps, reverse=True)[:10]
        ],
        "kernels": [
            {"name": name[:120], "ms": spent / 1e3, "count": counts[name]}
            for name, spent in names.most_common(LISTED)
        ],
    }


def kind_of(name: str) -> str:
    """What a kernel does, by its name."""
    fitting = (kind for kind, marks in KINDS.items() if any(mark in name for mark in marks))
    return next(fitting, OTHER)


def traced(run: Callable[[], None], prepare: Callable[[], None]) -> list[Kernel]:
    """What the device does in a call, after two that compile and warm it up."""
    for _ in range(2):
        prepare()
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    return [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in trace.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=["ours", "peer"])
    parser.add_argument("--layers", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device, size = torch.device("cuda"), chosen_size(tiny=False, layers=arguments.layers)
    batch = micro_batch(size, size.text_lengths, device)
    figures: dict[str, Any] = {"software": cuda_versions(device), "size": size.describe()}
    for name in arguments.only:
        if name == "ours":
            model = Ours(size, device)
            model.compile()
            found = summary(traced(model.train(batch), model.mode()))
        else:
            peer = Peer(size, device)
            peer.compile()
            run = peer.train(batch, best_attention=True)
            found = summary(traced(run, peer.mode(checkpointing=False)))
        figures[name] = found
        show(name, found)
    print(
        write_result(
            "kernels", device_label(device), ("torch", "diffusers"), figures, arguments.out
        )
    )


def show(name: str, found: dict[str, Any]) -> None:
    """The tables."""
    print(f"\n{name}: {found['span_ms']:.1f} ms, idle {found['idle_ms']:.1f}")
    print_table(("kind", "ms"), [(k, f"{ms:.1f}") for k, ms in found["kinds_ms"].items()])
    rows = [(k["name"], k["count"], f"{k['ms']:.2f}") for k in found["kernels"]]
    print_table(("kernel", "count", "ms"), rows)


if __name__ == "__main__":
    main()
