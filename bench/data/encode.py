"""Encoding of 81×480×832 clips: the autoencoder alone, reading alone, and the whole prep step.

Builds Wan2.2's autoencoder at full size (704,688,668 parameters) with random weights, checks our
encoder against the library's own call, times both as shipped and compiled, then prepares a raw run
of 8 clips' frames made on the fly, cut into 40 overlapping clips, each of which reads all its
frames. Prints seconds a clip and writes bench/results/encode-<device>.json.

--only reading  times what reads clips and needs no autoencoder and no GPU; writes nothing
--only step     times reading, the encoder, both, and the whole step with and without its start,
                alone and for several runs; writes nothing

The check: in bf16, relative to fp32, our error may be at most 1.1 times the library's.

Run: python -m bench.data.encode [--workers 14] [--only step] [--device cpu --tiny] [--out FOLDER]
"""

import argparse
import functools
import gc
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common.recording import Size, clip_of, write_raw
from bench.common.report import RESULTS
from bench.common.step_times import reading_times, seconds, step_times
from gc25d.prep.encoders.wan_vae import Speed, WanVaeCodec
from gc25d.records import write_json

FULL = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2, "temperal_downsample": [False, True, True], "is_residual": True,
    "in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
    "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip
TINY = FULL | {
    "base_dim": 1, "decoder_base_dim": 1, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1,
}  # fmt: skip
PARAMETERS = 704_688_668
Encode = Callable[[np.ndarray], Any]
SIZES = {
    False: Size(81, 480, 832, (720, 1280), 8, 40, 17, 3),
    True: Size(9, 64, 64, (80, 112), 2, 4, 9, 1),
}


def main() -> None:
    arguments = parse()
    size = SIZES[arguments.tiny]
    device = "cuda:0" if arguments.device == "cuda" else arguments.device
    with tempfile.TemporaryDirectory() as name:
        figures = measured(Path(name), size, device, arguments)
    report = {"machine": machine(device), "size": size.__dict__, **figures}
    show(report)
    label = "".join(c if c.isalnum() else "-" for c in report["machine"]["device"])
    if not arguments.only:
        write_json(arguments.out / f"encode-{label}.json", report)


def measured(
    folder: Path, size: Size, device: str, arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """What was asked for, under `check`, `encoder`, `reading` and `step`."""
    write_raw(folder / "raw", size)
    print("raw run written", flush=True)
    reading = {"reading": reading_times(folder / "raw", size, arguments.workers)}
    print(reading, flush=True)
    if arguments.only == "reading":
        return reading
    save_autoencoder(folder / "vae", TINY if arguments.tiny else FULL, device)
    step = reading | {"step": step_times(folder, size, device, arguments.workers)}
    if arguments.only == "step":
        return step
    return {
        "check": check(folder / "vae", size, device),
        "encoder": encoder_times(folder / "vae", size, device, compiled=not arguments.tiny),
        **step,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=("reading", "step"))
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def machine(device: str) -> dict[str, str]:
    import diffusers

    gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name(device) if gpu else "CPU",
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()),
        "diffusers": diffusers.__version__,
        "python": platform.python_version(),
    }


def save_autoencoder(folder: Path, config: dict[str, Any], device: str) -> None:
    """Random weights, in bf16 on disk."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoencoderKLWan(**config)
    count = sum(parameter.numel() for parameter in model.parameters())
    if config is FULL and count != PARAMETERS:
        raise SystemExit(f"the autoencoder has {count} parameters, expected {PARAMETERS}")
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    model.save_pretrained(folder)


def library_model(folder: Path, device: str, dtype: torch.dtype) -> Any:
    from diffusers import AutoencoderKLWan

    model = AutoencoderKLWan.from_pretrained(folder, torch_dtype=dtype, local_files_only=True)
    return model.to(device).eval()


def library_encode(model: Any, frames: np.ndarray) -> torch.Tensor:
    """The library's own call."""
    video = torch.from_numpy(frames).to(model.device).permute(3, 0, 1, 2)[None].float()
    with torch.no_grad():
        posterior = model.encode((video / 127.5 - 1).to(model.dtype)).latent_dist
    return posterior.mode()[0].float().cpu()


def check(folder: Path, size: Size, device: str) -> dict[str, float]:
    """Relative errors of the working precision; ends the benchmark when ours is the larger."""
    frames = clip_of(size, size.checked)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        exact = library_encode(library_model(folder, device, torch.float32), frames)
    codec = WanVaeCodec.load(folder, device)
    library = library_encode(library_model(folder, device, codec.model.dtype), frames)
    ours, theirs = (
        float((found - exact).norm() / exact.norm()) for found in (codec.encode(frames), library)
    )
    if not ours <= max(1.1 * theirs, 1e-5):
        raise SystemExit(f"our relative error is {ours:.2e}, the library's {theirs:.2e}")
    return {"ours": ours, "library": theirs}


def variants(folder: Path, device: str, compiled: bool) -> Iterator[tuple[str, Encode]]:
    """What is timed: a name and a function of frames that owns its model."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    for name in ("as shipped", "compiled")[: 1 + compiled]:
        model = library_model(folder, device, dtype)
        if name == "compiled":
            model.encoder = torch.compile(model.encoder, dynamic=False)
        yield f"diffusers, {name}", functools.partial(library_encode, model)
        del model
    speeds = {
        "ours, plain layers": Speed(False, False, 4),
        "ours": Speed(),
        "ours, compiled": Speed(compiled=True),
    }
    for name, speed in speeds.items():
        if compiled or not speed.compiled:
            yield name, WanVaeCodec.load(folder, device, speed).encode


def encoder_times(
    folder: Path, size: Size, device: str, compiled: bool
) -> dict[str, dict[str, float]]:
    """Seconds a clip of each variant, its first clip (compilation) and its peak memory."""
    frames = clip_of(size, size.frames)
    found = {}
    for name, encode in variants(folder, device, compiled):
        gc.collect()
        torch.compiler.reset()
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats(device)
        first, *times = [seconds(encode, frames) for _ in range(1 + size.repeats)]
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if device != "cpu" else 0.0
        found[name] = {"s": statistics.median(times), "first_s": first, "peak_gib": peak}
        print(f"{name:36s} {found[name]['s']:7.3f} s   first {first:6.1f} s   {peak:5.1f} GiB")
    return found


def show(report: dict[str, Any]) -> None:
    """The table: seconds a clip."""
    print(f"\n{report['machine']}\n{report['size']}")
    if errors := report.get("check"):
        print(f"relative error: ours {errors['ours']:.2e}, library {errors['library']:.2e}")
    print()
    for name, entry in report.get("encoder", {}).items():
        print(f"{name:54s} {entry['s']:8.3f} s a clip")
    for name, value in (report["reading"] | report.get("step", {})).items():
        print(f"{name:54s} {value:8.3f}")


if __name__ == "__main__":
    main()
