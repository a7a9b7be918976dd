"""One raw run on disk, written: tars, npz and JSON as `docs/raw-format.md` says."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8

from gc25d.capture.raw.arrays import write_arrays
from gc25d.capture.raw.format import ClipTable, RunMeta, Skeletons
from gc25d.capture.raw.images import encode_frame, encode_stencil
from gc25d.capture.raw.tars import write_series
from gc25d.records import write_json


def write_run(
    run_dir: Path,
    *,
    frames: Iterable[UInt8[np.ndarray, "H W 3"]],
    stencil: Iterable[UInt8[np.ndarray, "H W"]],
    cameras: Float64[np.ndarray, "F 4 4"],
    skeletons: Skeletons,
    meta: RunMeta,
    tables: Sequence[ClipTable],
) -> None:
    """Write a run: each file whole or not at all, `meta.json` last, equal input as equal bytes.

    What an earlier run left in the folder goes first.
    """
    _clear(run_dir)
    written = {
        "frames": write_series(run_dir / "frames.tar", ".jpg", map(encode_frame, frames)),
        "stencil": write_series(run_dir / "stencil.tar", ".png", map(encode_stencil, stencil)),
        "cameras": len(cameras),
        "skeletons": len(skeletons.capsules),
    }
    if len(set(written.values())) > 1:
        raise ValueError(f"{run_dir}: numbers of frames differ: {written}")
    write_arrays(run_dir / "cameras.npz", world_to_clip=np.asarray(cameras, np.float64))
    write_arrays(
        run_dir / "skeletons.npz",
        capsules=np.asarray(skeletons.capsules, np.float32),
        part=np.asarray(skeletons.part, np.uint8),
    )
    for table in tables:
        write_json(run_dir / f"clips_{table.frames}.json", dataclasses.asdict(table))
    heights = [None if math.isnan(z) else float(z) for z in meta.ground_z]
    write_json(run_dir / "meta.json", {**dataclasses.asdict(meta), "ground_z": heights})


def _clear(run_dir: Path) -> None:
    for pattern in ("meta.json", "clips_*.json", "frames*.tar", "stencil*.tar", "*.npz"):
        for path in run_dir.glob(pattern):
            path.unlink()
