"""A small data set made by the real prep steps from raw runs drawn by hand."""

import hashlib
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, Skeletons
from gc25d.capture.raw.write import write_run
from gc25d.geometry.camera import look, perspective, rotator_axes
from gc25d.records import write_json
from gc25d.steps import build_index, encode_text, prep_run

FRAMES, HEIGHT, WIDTH = 9, 64, 64
RUNS = ("castle__run-000", "castle__run-001", "castle__run-002")
CLIPS_PER_RUN = 5
GEOMETRY = {"frames": FRAMES, "height": HEIGHT, "width": WIDTH}
TEXT = {"encoder": "bytes", "dir": "", "length": 16, "dim": 8}


def draw_run(folder: Path, seed: int) -> None:
    """A camera 100 cm above the ground walks forward; a boss square drifts over the picture."""
    rng = np.random.default_rng(seed)
    count = FRAMES * CLIPS_PER_RUN
    frames = rng.integers(0, 255, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)
    stencil = np.zeros((count, HEIGHT, WIDTH), dtype=np.uint8)
    stencil[:, HEIGHT // 2 :] = 1
    capsules = np.zeros((count, 1, 7), dtype=np.float32)
    cameras = np.zeros((count, 4, 4))
    clip = perspective(90.0, WIDTH / HEIGHT, near=1.0)
    for t in range(count):
        place = 8 + (3 * t + 5 * seed) % 40
        stencil[t, 20:44, place : place + 8] = 8
        frames[t, 20:44, place : place + 8] = (200, 30, 30)
        cameras[t] = look(np.array([4.0 * t, 0.0, 100.0]), rotator_axes(0.0, 0.0, 0.0)) @ clip
        capsules[t, 0] = (4.0 * t + 300, 0, 20, 4.0 * t + 300, 0, 150, 30)
    cells = (FRAMES - 1) // 4 + 1
    keys = ("forward", "turn_left")
    clips = tuple(
        RawClip(FRAMES * i, tuple(keys[(i + c) % 2] for c in range(cells)))
        for i in range(CLIPS_PER_RUN)
    )
    write_run(
        folder,
        frames=frames,
        stencil=stencil,
        cameras=cameras,
        skeletons=Skeletons(capsules, np.array([17], dtype=np.uint8)),
        meta=RunMeta(17.5, WIDTH, HEIGHT, (0.0,), "cm", "perspective", "drawn", "none"),
        tables=[ClipTable(FRAMES, {"forward": "go forward", "turn_left": "turn left"}, clips)],
    )


def build_dataset(root: Path, raw_root: Path) -> Path:
    """raw runs → data set, by the pipeline's own steps."""
    rows = []
    settings = root / "settings"
    write_json(settings / "prep.json", {"geometry": GEOMETRY, "codec": "dct", "codec_dir": ""})
    write_json(settings / "text.json", {"text": TEXT})
    index = {"val_runs": [RUNS[-1]], "buried": [], "limit": 0, "limit_seed": 0}
    batch = {"global_batch": 4, "grad_accum": 1}
    write_json(settings / "index.json", {"geometry": GEOMETRY, **index, **batch})
    for seed, run_id in enumerate(RUNS):
        scene, run = run_id.split("__")
        raw = raw_root / "drawn" / scene / run
        draw_run(raw, seed)
        rows.append(root / f"index/runs/{run_id}.jsonl")
        prep_run.main(
            Namespace(
                workers=0,
                settings=settings / "prep.json",
                raw=raw,
                run_id=run_id,
                latents=root / f"latents/{run_id}.safetensors",
                ids=root / f"ids/{run_id}.safetensors",
                rows=rows[-1],
                record=root / f"index/raw/{run_id}.json",
            )
        )
    table = root / "text/table.safetensors"
    encode_text.main(Namespace(settings=settings / "text.json", rows=rows, out=table))
    build_index.main(
        Namespace(
            settings=settings / "index.json",
            rows=rows,
            table=table,
            root=root,
            clips=root / "index/clips.jsonl",
            ready=root / "READY",
        )
    )
    return root


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/<name> with two training runs and one validation run of 5 clips, 9 × 64 × 64."""
    base = tmp_path_factory.mktemp("small")
    return build_dataset(base / "data", base / "raw")


@pytest.fixture(scope="session")
def entropy_by_hand() -> Callable[..., np.random.SeedSequence]:
    """Builds the seed of a named stream as gc25d/dataset/draws.py documents it, by hand.

    What a run has recorded repeats only while every name and every formula stays.
    """

    def build(*name: int | str) -> np.random.SeedSequence:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]
        return np.random.SeedSequence(words)

    return build


@pytest.fixture(scope="session")
def drawn_by_hand(
    entropy_by_hand: Callable[..., np.random.SeedSequence],
) -> Callable[..., torch.Generator]:
    """Builds the torch generator of a named stream: the upper 63 bits of the seed's first word."""

    def build(*name: int | str) -> torch.Generator:
        (word,) = entropy_by_hand(*name).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(word) >> 1)

    return build


class DiskEvent(NamedTuple):
    """What a program asked of the disk."""

    kind: str
    """`fsync`, `rename` or `remove` (of a folder)."""
    path: Path
    """Of a rename the old name."""
    to: Path | None = None
    """The new name."""
    content: bytes | None = None
    """What a synced or renamed file held at that moment."""


@pytest.fixture
def disk_events(monkeypatch: pytest.MonkeyPatch) -> list[DiskEvent]:
    """Everything that is brought to disk, renamed or removed from now on, in order.

    A kill shows nothing of it, as the system keeps what it was given; a power cut would.
    """
    events: list[DiskEvent] = []
    asked: dict[str, Callable[..., Any]] = {"fsync": os.fsync, "rmtree": shutil.rmtree}

    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() else None

    def fsync(descriptor: int) -> None:
        asked["fsync"](descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append(DiskEvent("fsync", path, content=content(path)))

    def renaming(function: Callable[..., None]) -> Callable[..., None]:
        def rename(old: Any, new: Any, **options: Any) -> None:
            events.append(DiskEvent("rename", Path(old), Path(new), content(Path(old))))
            function(old, new, **options)

        return rename

    def rmtree(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path).exists():
            events.append(DiskEvent("remove", Path(path)))
        asked["rmtree"](path, *arguments, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, renaming(getattr(os, name)))
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    return events
