"""Time of one training sample of 81×480×832 on one core: unmasked, masked by policy, dropped.

Writes a data set of random latents and drawn ids to a temporary folder (about 80 MB), reads each
clip once to warm the page cache, and prints the median and the fastest of 40 samples in ms.

Run: OMP_NUM_THREADS=1 python bench/sample_reading.py
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.geometry.camera import look, perspective, rotator_axes
from gc25d.prep.store import digest_tensor, ids_file, latents_file, pack_ids, write_tensors
from gc25d.prep.text import TABLE, ByteEncoder, build_table, write_table
from gc25d.records import write_json, write_jsonl

FRAMES, HEIGHT, WIDTH, CLIPS = 81, 480, 832, 20
CASES = {
    "unmasked": {},
    "masked, first_frame": {"mask_p": 1.0},
    "masked, mean_frame": {"mask_p": 1.0, "coverage": "mean_frame"},
    "masked, capped": {"mask_p": 1.0, "coverage": "capped"},
    "condition dropped": {"cond_dropout": 1.0},
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


def build(root: Path) -> None:
    """A data set of one run with `CLIPS` clips."""
    clip = perspective(90, WIDTH / HEIGHT, 10.0)
    cameras = np.stack(
        [
            look(np.array([10.0 * t, 0, 170.0]), rotator_axes(-12, 0, 0)) @ clip
            for t in range(FRAMES)
        ]
    )
    packed, latents, ids, rows = pack_ids(drawn_ids()), {}, {}, []
    for number in range(CLIPS):
        clip_id = f"bench__run-000__{number:06d}"
        tensors = {
            "latents": torch.randn(48, 21, 30, 52).bfloat16(),
            "ids": packed.clone(),
            "world_to_clip": torch.from_numpy(cameras.copy()),
        }
        latents[clip_id] = tensors["latents"]
        ids[f"{clip_id}.ids"] = tensors["ids"]
        ids[f"{clip_id}.world_to_clip"] = tensors["world_to_clip"]
        rows.append(
            {
                "clip_id": clip_id,
                "run": "bench__run-000",
                "split": "train",
                "drop": False,
                "text_keys": ["go"] * 21,
                "paths": {
                    "latents": latents_file("bench__run-000"),
                    "ids": ids_file("bench__run-000"),
                },
                "digests": {name: digest_tensor(tensor) for name, tensor in tensors.items()},
                "ground_z": 0.0,
            }
        )
    write_tensors(root / latents_file("bench__run-000"), latents)
    write_tensors(root / ids_file("bench__run-000"), ids)
    write_jsonl(root / "index/clips.jsonl", rows)
    write_table(root / TABLE, build_table({"go": "go"}, ByteEncoder(64, 64), 64))
    write_json(root / "READY", {"geometry": {"frames": FRAMES, "height": HEIGHT, "width": WIDTH}})


def milliseconds(clips: ClipDataset) -> list[float]:
    """Times of 40 samples after one pass over the clips."""
    for index in range(len(clips)):
        clips.clip(clips.rows[index].clip_id)
    times = []
    for number in range(40):
        start = time.perf_counter()
        clips.sample(number // CLIPS, number % CLIPS)
        times.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        size = (Path(folder) / ids_file("bench__run-000")).stat().st_size
        print(f"packed ids: {size / CLIPS:,.0f} bytes a clip")
        for name, settings in CASES.items():
            times = milliseconds(ClipDataset(Path(folder), "train", **settings))
            print(
                f"{name:22s} median {statistics.median(times):6.1f} ms, best {min(times):6.1f} ms"
            )


if __name__ == "__main__":
    main()
