"""Time of a training sample of 81×480×832, and samples a second with reading threads.

CPU time of one core, in one run: unmasked, condition dropped, masked by each coverage policy, and
masked by peers that unproject a ray for each 4×4 cell or for each pixel. Then samples a second
(wall) that arrive as micro-batches of one, read by the consumer itself and by 4 threads. The data
set, random latents and drawn ids in a temporary folder (about 80 MB), is in the page cache. Prints
medians and the fastest, and writes results/dataset-CPU.json. Targets: 30 ms masked, 20 ms unmasked.

Run: OMP_NUM_THREADS=1 python -m bench.data.dataset
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common.report import print_table, write_result
from gc25d.dataset.clips import ClipDataset, Rates
from gc25d.dataset.ground_cells import CENTRE
from gc25d.dataset.masks import HalfPlane
from gc25d.dataset.order import Schedule
from gc25d.geometry.camera import look, perspective, pixel_centers, rotator_axes
from gc25d.geometry.cells import CELL
from gc25d.geometry.ground import ground_points
from gc25d.prep.parts import LAST_STATIC, UNKNOWN
from gc25d.prep.store import digest_tensor, ids_file, latents_file, pack_ids, read_tensor
from gc25d.prep.text import TABLE, ByteEncoder, build_table, write_table
from gc25d.records import write_json, write_jsonl
from gc25d.tensors import write_tensors
from gc25d.train.feed import MicroBatches, Span, read_ahead

FRAMES, HEIGHT, WIDTH, CLIPS = 81, 480, 832, 20
RUN = "bench__run-000"
SAMPLES, PEER_SAMPLES, FED = 40, 3, 120
WORKERS = (0, 4)
CASES: dict[str, dict[str, Any]] = {
    "unmasked": {},
    "condition dropped": {"cond_dropout": 1.0},
    "masked, first_frame": {"mask_p": 1.0},
    "masked, mean_frame": {"mask_p": 1.0, "coverage": "mean_frame"},
    "masked, capped": {"mask_p": 1.0, "coverage": "capped"},
}


def drawn_ids() -> np.ndarray:
    """Sky, ground, ragged blocks that drift, and a character."""
    ids = np.zeros((FRAMES, HEIGHT, WIDTH), np.uint8)
    edge = np.cumsum(np.random.default_rng(0).integers(-2, 3, WIDTH * 2)) % 80
    rows = np.arange(HEIGHT)[:, None]
    for t, frame in enumerate(ids):
        border = 200 + edge[4 * t : 4 * t + WIDTH]
        frame[rows > border] = 1
        frame[(rows > border - 60) & (rows <= border) & (np.arange(WIDTH) // 64 % 3 == 0)] = 5
        frame[260:420, 380 + t : 440 + t] = 11
    return ids


def cameras() -> np.ndarray:
    """170 cm above the ground, looking down by 12 degrees, 10 cm forward a frame."""
    lens, axes = perspective(90, WIDTH / HEIGHT, 10.0), rotator_axes(-12, 0, 0)
    return np.stack([look(np.array([10.0 * t, 0, 170.0]), axes) @ lens for t in range(FRAMES)])


def build(root: Path) -> None:
    """A data set of one run with `CLIPS` clips."""
    packed, generator = pack_ids(drawn_ids()), torch.Generator().manual_seed(0)
    latents, ids, rows = {}, {}, []
    for number in range(CLIPS):
        clip_id = f"{RUN}__{number:06d}"
        latents[clip_id] = torch.randn(48, 21, 30, 52, generator=generator).bfloat16()
        ids[f"{clip_id}.ids"] = packed.clone()
        ids[f"{clip_id}.world_to_clip"] = torch.from_numpy(cameras())
        digests = {
            name: digest_tensor(ids[f"{clip_id}.{name}"]) for name in ("ids", "world_to_clip")
        }
        rows.append(
            {
                "clip_id": clip_id, "run": RUN, "split": "train", "drop": False,
                "text_keys": ["go"] * 21, "ground_z": 0.0,
                "paths": {"latents": latents_file(RUN), "ids": ids_file(RUN)},
                "digests": digests | {"latents": digest_tensor(latents[clip_id])},
            }
        )  # fmt: skip
    write_tensors(root / latents_file(RUN), latents, {})
    write_tensors(root / ids_file(RUN), ids, {})
    write_jsonl(root / "index/clips.jsonl", rows)
    write_table(root / TABLE, build_table({"go": "go"}, ByteEncoder(64, 64), 64))
    write_json(root / "READY", {"geometry": {"frames": FRAMES, "height": HEIGHT, "width": WIDTH}})


def unprojected_sample(root: Path, number: int, stride: int) -> float:
    """The peer: read a clip and mask it with rays through every `stride`-th pixel; hidden share."""
    clips = ClipDataset(root, "train")
    row = clips.rows[number % CLIPS]
    sem_ids = clips.clip(row.clip_id).sem_ids.numpy()
    matrices = read_tensor(root / row.ids, f"{row.clip_id}.world_to_clip").numpy()
    planes = Rates(0, 0, 1).draw(0, number // CLIPS, number % CLIPS).planes
    first = CENTRE if stride == CELL else 0
    pixels = pixel_centers(WIDTH, HEIGHT)[first::stride, first::stride]
    offsets: list[float] = []
    hidden = 0
    for frame, camera in zip(sem_ids, matrices, strict=True):
        points, seen = ground_points(camera, pixels, 0.0, WIDTH, HEIGHT)
        if not offsets:
            blocks = (frame <= LAST_STATIC).reshape(HEIGHT // stride, stride, WIDTH // stride, -1)
            counts = (blocks.sum(axis=(1, 3)) * seen).ravel()
            offsets = [quantile(plane, points.reshape(-1, 2), counts) for plane in planes]
        beyond = ~seen
        for plane, offset in zip(planes, offsets, strict=True):
            beyond |= points @ plane.normal > offset
        chosen = beyond.repeat(stride, axis=0).repeat(stride, axis=1) & (frame <= LAST_STATIC)
        frame[chosen] = UNKNOWN
        hidden += int(chosen.sum())
    return hidden / sem_ids.size


def quantile(plane: HalfPlane, points: np.ndarray, counts: np.ndarray) -> float:
    """Of the points, each counted as often as its cell has static pixels."""
    return float(np.quantile(np.repeat(points @ plane.normal, counts), 1 - plane.quantile))


def milliseconds(work: Callable[[int], object], count: int) -> dict[str, float]:
    """Median and best CPU time of `work(0)`, …, `work(count − 1)`."""
    times = []
    for number in range(count):
        start = time.process_time()
        work(number)
        times.append((time.process_time() - start) * 1e3)
    return {"median": round(statistics.median(times), 1), "best": round(min(times), 1)}


def time_samples(root: Path) -> dict[str, dict[str, float]]:
    """Every case and the peers, whose masks must hide what ours hide."""
    results = {}
    for name, settings in CASES.items():
        clips = ClipDataset(root, "train", **settings)
        results[name] = milliseconds(lambda n, c=clips: c.sample(n // CLIPS, n % CLIPS), SAMPLES)
    ours = ClipDataset(root, "train", mask_p=1.0).sample(0, 0).dropped["mask"]
    theirs = unprojected_sample(root, 0, CELL)
    if abs(ours - theirs) > 1e-6:
        raise RuntimeError(
            f"the masks differ: {ours} of the pixels hidden, the peer hides {theirs}"
        )
    for name, stride in (("cell", CELL), ("pixel", 1)):
        peer = milliseconds(lambda n, s=stride: unprojected_sample(root, n, s), PEER_SAMPLES)
        results[f"peer: a ray for each {name}"] = peer
    return results


def samples_per_second(root: Path, workers: int) -> float:
    """Masked half of the time, with all dropouts, after the first 20 that fill the queues."""
    clips = ClipDataset(root, "train", text_dropout=0.1, cond_dropout=0.05, mask_p=0.5)
    fed = read_ahead(MicroBatches(clips, Schedule(CLIPS, 1, 1, 0), 1, Span(0, FED)), workers)
    for _ in range(20):
        next(fed)
    start = time.perf_counter()
    return round(sum(1 for _ in fed) / (time.perf_counter() - start), 1)


def report(times: dict[str, dict[str, float]], rates: dict[str, float]) -> Sequence[Sequence[Any]]:
    rows = [
        (name, *(f"{found[key]:.1f}" for key in ("median", "best")))
        for name, found in times.items()
    ]
    return rows + [
        (f"samples a second, {workers} workers", rate, "") for workers, rate in rates.items()
    ]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build(root)
        size = (root / ids_file(RUN)).stat().st_size // CLIPS
        for row in ClipDataset(root, "train").rows:
            ClipDataset(root, "train").clip(row.clip_id)
        times = time_samples(root)
        rates = {str(workers): samples_per_second(root, workers) for workers in WORKERS}
    print_table(("one sample, ms", "median", "best"), report(times, rates))
    figures = {"ids_bytes": size, "milliseconds": times, "samples_per_second": rates}
    print(write_result("dataset", "CPU", ("torch", "numpy", "zstandard", "safetensors"), figures))


if __name__ == "__main__":
    main()
