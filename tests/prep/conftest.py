"""Raw runs written by hand: a few frames, an analytic camera, one character; sound and damaged."""

import io
import json
import math
import tarfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gc25d.capture.raw.format import ClipTable, RawClip, RunMeta, Skeletons
from gc25d.capture.raw.write import write_run
from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.geometry.camera import look, perspective, rotator_axes
from gc25d.records import write_json
from gc25d.steps import build_index, encode_text, prep_run

WIDTH, HEIGHT, FRAMES = 80, 48, 12


def picture(number: int, seed: int) -> np.ndarray:
    """Smooth colours that move with the frame and differ by seed."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [np.sin((x + 3 * number + 17 * seed) / (9 + c)) + np.cos(y / (7 + c)) for c in range(3)]
    return (np.stack(waves, -1) * 55 + 128).astype(np.uint8)


def stencil() -> np.ndarray:
    """Sky above, ground below, the player in the middle."""
    classes = np.ones((HEIGHT, WIDTH), np.uint8)
    classes[:20] = 0
    classes[24:36, 36:44] = 7
    return classes


def write_raw(run_dir: Path, seed: int = 0, prompts: dict[str, str] | None = None) -> Path:
    """Two clips of 5 frames, at 0 and 5, of `FRAMES` frames."""
    camera = look(np.array([0, 0, 150.0]), rotator_axes(-10, 0, 0))
    cameras = np.stack([camera @ perspective(90, WIDTH / HEIGHT, 5.0)] * FRAMES)
    capsule = np.array([300, 0, 0, 300, 0, 180, 30], np.float32)
    meta = RunMeta(
        fps=17.5, width=WIDTH, height=HEIGHT, ground_z=(math.nan, 4.0, 8.0), units="cm",
        projection="perspective", source="test", engine="by hand",
    )  # fmt: skip
    clips = tuple(RawClip(start, ("go", "stop")) for start in (0, 5))
    table = ClipTable(5, prompts or {"go": "walk on", "stop": "stand still"}, clips)
    write_run(
        run_dir,
        frames=[picture(number, seed) for number in range(FRAMES)],
        stencil=[stencil()] * FRAMES,
        cameras=cameras,
        skeletons=Skeletons(np.tile(capsule, (FRAMES, 1, 1)), np.array([11], np.uint8)),
        meta=meta,
        tables=[table],
    )
    return run_dir


@pytest.fixture
def raw_run():
    """Writes a raw run into a folder: `raw_run(folder, seed, prompts)`."""
    return write_raw


Frames = list[tuple[str, bytes]]
GEOMETRY = {"frames": 5, "height": 32, "width": 32}
RUNS = BAD, GOOD, VAL = tuple(f"maze__run-{number:03d}" for number in range(3))


@dataclass(frozen=True)
class RawFolder:
    """A raw run, to be damaged."""

    path: Path

    def members(self, name: str) -> Frames:
        with tarfile.open(self.path / name) as tar:
            return [(info.name, tar.extractfile(info).read()) for info in tar]

    def write_members(self, name: str, content: Frames) -> None:
        with tarfile.open(self.path / name, "w") as tar:
            for member, data in content:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    def change_frame(self, frame: int, change: Callable[[bytes], bytes]) -> None:
        content = self.members("frames.tar")
        content[frame] = (content[frame][0], change(content[frame][1]))
        self.write_members("frames.tar", content)

    def change_cameras(self, change: Callable[[np.ndarray], np.ndarray]) -> None:
        with np.load(self.path / "cameras.npz") as archive:
            cameras = archive["world_to_clip"].copy()
        np.savez(self.path / "cameras.npz", world_to_clip=change(cameras))

    def change_clips(self, change: Callable[[list[dict]], list[dict]]) -> None:
        table = json.loads((self.path / "clips_5.json").read_text())
        table["clips"] = change(table["clips"])
        (self.path / "clips_5.json").write_text(json.dumps(table))


@dataclass(frozen=True)
class Captures:
    """Three raw runs of two clips each, the first one damaged, and the data built of them."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "data"

    def build(self, change: Callable[[RawFolder], None], strict: bool = False) -> Path:
        """Write the runs, change the first, build; returns the data folder."""
        root = self.root
        text = {"encoder": "bytes", "dir": "", "length": 16, "dim": 8}
        write_json(root / "prep.json", {"geometry": GEOMETRY, "codec": "dct", "codec_dir": ""})
        write_json(root / "text.json", {"text": text})
        rows = []
        for seed, run in enumerate(RUNS):
            folder = write_raw(self.folder / "raw/maze" / run.removeprefix("maze__"), seed)
            if run == BAD:
                change(RawFolder(folder))
            rows.append(root / f"index/runs/{run}.jsonl")
            tensors = {name: root / f"{name}/{run}.safetensors" for name in ("latents", "ids")}
            whose = {"run_id": run, "raw": folder, "workers": 0}
            whose["record"] = root / f"index/raw/{run}.json"
            prep_run.main(Namespace(settings=root / "prep.json", rows=rows[-1], **whose, **tensors))
        table = root / "text/table.safetensors"
        encode_text.main(Namespace(settings=root / "text.json", rows=rows, out=table))
        self.join(rows, strict)
        return root

    def join(self, rows: list[Path], strict: bool, buried: tuple[str, ...] = ()) -> None:
        root = self.root
        index = {"val_runs": [VAL], "buried": buried, "limit": 0, "limit_seed": 0, "strict": strict}
        batch = {"global_batch": 2, "grad_accum": 1}
        write_json(root / "index.json", {"geometry": GEOMETRY, **index, **batch})
        build_index.main(
            Namespace(
                settings=root / "index.json", rows=rows, table=root / "text/table.safetensors",
                root=root, clips=root / "index/clips.jsonl", ready=root / "READY",
            )
        )  # fmt: skip

    def usable(self) -> list[str]:
        splits = (ClipDataset(self.root, "train"), ClipDataset(self.root, "val"))
        return [data.sample(0, i).clip_id for data in splits for i in range(len(data))]

    def others(self, *names: str) -> list[str]:
        """All clips of the set but these, as `usable` lists them."""
        every = [f"{run}__{start:06d}" for run in RUNS for start in (0, 5)]
        return [name for name in every if name not in names]

    def rejoin_strictly(self) -> str:
        """What strict says of a set that was built without it."""
        for name in ("READY", "index/clips.jsonl"):
            (self.root / name).unlink()
        with pytest.raises(UserError) as refused:
            self.join(sorted((self.root / "index/runs").iterdir()), strict=True)
        assert not (self.root / "READY").exists()
        return str(refused.value)


@pytest.fixture
def captures(tmp_path):
    """Builds three runs whose first was damaged."""
    return Captures(tmp_path)
