"""Encoding of 81×480×832 clips: the autoencoder alone, reading alone, and the whole prep step.

Builds Wan2.2's autoencoder at full size (704,688,668 parameters) with random weights, checks our
encoder against the library's own call, times both as shipped and compiled, then prepares a raw run
of 8 clips' frames made on the fly, cut into 40 overlapping clips. Prints seconds a clip and writes
bench/results/encode-<device>.json.

The check: in bf16, relative to fp32, our error may be at most 1.1 times the library's.

Run: python bench/encode.py [--workers 14] [--device cpu --tiny] [--out FOLDER]
"""

import argparse
import functools
import gc
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gc25d.capture.format import ClipTable, RawClip, RunMeta, Skeletons, latent_cells, write_run
from gc25d.geometry.camera import look, perspective, project, rotator_axes
from gc25d.prep.prepare import prepare_run
from gc25d.prep.read import RawRun
from gc25d.prep.readers import readings
from gc25d.prep.wan_vae import Speed, WanVaeCodec
from gc25d.records import write_json

RUN_ID = "bench__run-000"
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
# (forward, right, up) of both ends and the radius, cm; part
LIMBS = (
    ((0, 0, 165), (0, 0, 168), 14, 0),
    ((0, 0, 90), (0, 0, 145), 22, 1),
    ((0, -30, 90), (0, -35, 140), 9, 2),
    ((0, 30, 90), (0, 35, 140), 9, 2),
    ((0, -12, 10), (0, -12, 80), 11, 3),
    ((0, 12, 10), (0, 12, 80), 11, 3),
    ((0, -35, 80), (0, -35, 85), 8, 4),
    ((0, 35, 80), (40, 35, 85), 5, 5),
)
PLAYER, BOSSES = (350.0, 0.0), ((600.0, -300.0), (700.0, 250.0), (900.0, 60.0))


@dataclass(frozen=True)
class Size:
    """What is encoded, and how often each time is taken."""

    frames: int
    height: int
    width: int
    source_hw: tuple[int, int]
    clips: int
    """Clips' worth of frames that are written."""
    listed: int
    """Clips cut from them, overlapping, so that a run is as long as a real one."""
    checked: int
    """Frames of the check against fp32."""
    repeats: int


SIZES = {
    False: Size(81, 480, 832, (720, 1280), 8, 40, 17, 3),
    True: Size(9, 64, 64, (80, 112), 2, 4, 9, 1),
}


def main() -> None:
    arguments = parse()
    size = SIZES[arguments.tiny]
    device = "cuda:0" if arguments.device == "cuda" else arguments.device
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_autoencoder(folder / "vae", TINY if arguments.tiny else FULL, device)
        write_raw(folder / "raw", size)
        figures = {
            "check": check(folder / "vae", size, device),
            "encoder": encoder_times(folder / "vae", size, device, compiled=not arguments.tiny),
            "step": step_times(folder, size, device, arguments.workers),
        }
    report = {"machine": machine(device), "size": size.__dict__, **figures}
    show(report)
    label = "".join(c if c.isalnum() else "-" for c in report["machine"]["device"])
    write_json(arguments.out / f"encode-{label}.json", report)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="seconds on a CPU")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


def machine(device: str) -> dict[str, str]:
    import diffusers

    gpu = device.startswith("cuda")
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


def picture(number: int, height: int, width: int) -> np.ndarray:
    """Smooth colours that move."""
    y, x = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    waves = np.sin((x + 5 * number) / np.array([37, 53, 91])) + np.cos(y / np.array([29, 71, 43]))
    return (waves * 55 + 128).astype(np.uint8)


def bodies() -> tuple[np.ndarray, np.ndarray]:
    """Capsules [N, 7] and parts [N] of the player and three bosses."""
    capsules, parts = [], []
    for first, places in ((10, (PLAYER,)), (16, BOSSES)):
        for x, y in places:
            for start, end, radius, part in LIMBS:
                ends = [
                    a + b for point in (start, end) for a, b in zip(point, (x, y, 0), strict=True)
                ]
                capsules.append([*ends, radius])
                parts.append(first + part)
    return np.array(capsules, np.float32), np.array(parts, np.uint8)


def stencil_picture(camera: np.ndarray, height: int, width: int) -> np.ndarray:
    """Sky, ground, and an ellipse with a ragged edge for each character."""
    rows, columns = np.mgrid[:height, :width]
    stencil = np.where(rows < height * 0.4, 0, 1).astype(np.uint8)
    for place in (*BOSSES, PLAYER):
        (centre, head), _ = project(
            np.array([[*place, 90.0], [*place, 185.0]]), camera, width, height
        )
        tall = centre[1] - head[1]
        reach = ((columns - centre[0]) / (0.5 * tall)) ** 2 + ((rows - centre[1]) / tall) ** 2
        stencil[reach < 1 + 0.2 * np.sin(columns / 3)] = 7 if place == PLAYER else 8
    return stencil


def write_raw(folder: Path, size: Size) -> None:
    """A run whose clips overlap."""
    height, width = size.source_hw
    count = size.frames * size.clips
    lens = perspective(90, width / height, 5.0)
    camera = look(np.array([0, 0, 150.0]), rotator_axes(-5, 0, 0)) @ lens
    capsules, parts = bodies()
    stencil = stencil_picture(camera, height, width)
    keys = ("go",) * latent_cells(size.frames)
    stride = (count - size.frames) // (size.listed - 1)
    clips = tuple(RawClip(stride * number, keys) for number in range(size.listed))
    write_run(
        folder,
        frames=(picture(number, height, width) for number in range(count)),
        stencil=(stencil for _ in range(count)),
        cameras=np.tile(camera, (count, 1, 1)),
        skeletons=Skeletons(np.tile(capsules, (count, 1, 1)), parts),
        meta=RunMeta(16.0, width, height, (0.0,), "cm", "perspective", "bench", "none"),
        tables=[ClipTable(size.frames, {"go": "walk on"}, clips)],
    )


def clip_of(size: Size, frames: int) -> np.ndarray:
    return np.stack([picture(number, size.height, size.width) for number in range(frames)])


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


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def step_times(folder: Path, size: Size, device: str, workers: int) -> dict[str, float]:
    """Seconds a clip: one process reading, all reading, encoder alone, both, the whole step."""
    shape = size.frames, size.height, size.width
    run = RawRun.open(folder / "raw", RUN_ID, *shape)

    def read(count: int, clips: int) -> None:
        for reading in readings(run, run.clips()[:clips], count):
            reading.release()

    codec = WanVaeCodec.load(folder / "vae", device)
    frames = clip_of(size, size.frames)
    codec.encode(frames)
    encoder = statistics.median(seconds(codec.encode, frames) for _ in range(size.repeats))
    found = {
        "workers": float(workers),
        "reading, one process": seconds(read, 0, 1),
        f"reading, {workers} processes": seconds(read, workers, size.listed) / size.listed,
        "encoder alone": encoder,
        "reading and encoding": seconds(
            prepare_run, folder / "raw", RUN_ID, *shape, lambda: codec, workers
        )
        / size.listed,
        "the whole step, start included": seconds(whole_step, folder, size, workers) / size.listed,
    }
    again = seconds(whole_step, folder, size, workers) / size.listed
    found["the whole step again, compiled before"] = again
    found["share of the encoder's own speed"] = encoder / found["reading and encoding"]
    return found


def whole_step(folder: Path, size: Size, workers: int) -> None:
    """The step as the pipeline starts it; the device is its own choice."""
    geometry = {"frames": size.frames, "height": size.height, "width": size.width}
    settings = {"geometry": geometry, "codec": "wan_vae", "codec_dir": str(folder / "vae")}
    write_json(folder / "prep.json", settings)
    out = folder / "data"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "gc25d.steps.prep_run", "--settings", folder / "prep.json"]
    command += ["--raw", folder / "raw", "--run-id", RUN_ID, "--workers", workers]
    for name in ("latents", "ids", "rows", "log"):
        command += [f"--{name}", out / name]
    subprocess.run(list(map(str, command)), check=True)


def show(report: dict[str, Any]) -> None:
    """The table: seconds a clip."""
    size, errors = report["size"], report["check"]
    print(f"\n{report['machine']}\n{size}")
    print(f"relative error: ours {errors['ours']:.2e}, library {errors['library']:.2e}\n")
    for name, entry in report["encoder"].items():
        print(f"{name:36s} {entry['s']:8.3f} s a clip")
    for name, value in report["step"].items():
        print(f"{name:36s} {value:8.3f}")


if __name__ == "__main__":
    main()
