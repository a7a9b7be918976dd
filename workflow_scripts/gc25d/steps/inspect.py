r"""Draw one raw run or one prepared clip with all that is known of it, to look at.

Inputs:   target      folder of a raw run, or a clip id <scene>__<run>__<start>
          --data      the data set's folder, for a clip
          --raw-root  folder of the raw captures that it was built from, for a clip
          --start, --count  frames of a run (0, 240)
          --seed, --epoch, --index, --coverage  draw the UNKNOWN mask of that training sample, as if
                      its draw had said yes; index: the clip's own place in its split, 0 for a run
Output:   --out       .mp4: every frame; .png: a few, with a legend

Left: the frames with the ground's grid (1 m faint, 10 m strong) and the capsules' outlines.
Right: their semantic ids; what the mask hides is hatched.

Examples:
  python -m gc25d.steps.inspect raw/vizdoom/deathmatch/run-000 --out run.mp4
  python -m gc25d.steps.inspect deathmatch__run-000__000017 --epoch 3 --out clip.png
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from gc25d.capture.raw.format import (
    index_frames,
    read_cameras,
    read_frames,
    read_meta,
    read_skeletons,
    read_stencil,
)
from gc25d.dataset.clips import ClipDataset, Rates
from gc25d.dataset.masks import Coverage, mask_ids
from gc25d.errors import UserError
from gc25d.evaluate.inspection import Inspected, inspection_sheet, inspection_video
from gc25d.evaluate.panels import write_mp4, write_png
from gc25d.evaluate.truth import find_run, recorded_frames, split_clip_id
from gc25d.geometry.cells import CELL
from gc25d.geometry.ground import ground_plane
from gc25d.prep.parts import part_ids
from gc25d.prep.rows import Split, read_index
from gc25d.prep.store import read_tensor
from gc25d.steps import cli

COUNT = 240
"""Frames of a run that are drawn unless told otherwise."""


def main(arguments: argparse.Namespace) -> None:
    """Read, draw and write.

    Raises:
        UserError: the run, the clip or the data set is missing or damaged, or `--out` names no
            known kind of file.
    """
    if arguments.out.suffix not in (".mp4", ".png"):
        raise UserError(f"--out {arguments.out}: expected a name that ends in .mp4 or .png")
    run = Path(arguments.target)
    if run.is_dir():
        inspected, place = inspect_run(run, arguments.start, arguments.count), 0
        fps = read_meta(run).fps
    else:
        inspected, fps, place = inspect_clip(arguments.target, arguments.data, arguments.raw_root)
    if arguments.epoch is not None:
        index = place if arguments.index is None else arguments.index
        draw = (arguments.seed, arguments.epoch, index)
        inspected = masked(inspected, draw, arguments.coverage)
    if arguments.out.suffix == ".mp4":
        write_mp4(arguments.out, inspection_video(inspected), fps)
    else:
        write_png(arguments.out, inspection_sheet(inspected))


def inspect_run(run_dir: Path, start: int, count: int) -> Inspected:
    """Up to `count` frames from `start` of a raw run, at the captured size."""
    total = index_frames(run_dir).count
    count = min(count, total - start)
    if start < 0 or count < 1:
        raise UserError(f"{run_dir}: no frames from {start} on, the run has {total}")
    meta, skeletons = read_meta(run_dir), read_skeletons(run_dir, start, count)
    cameras = read_cameras(run_dir, start, count)
    stencil = read_stencil(run_dir, start, count)
    return Inspected(
        title=f"{run_dir.parent.name}__{run_dir.name}",
        frames=read_frames(run_dir, start, count),
        sem_ids=part_ids(stencil, cameras, skeletons.capsules, skeletons.part),
        cameras=cameras,
        capsules=skeletons.capsules.astype(np.float64),
        part=skeletons.part,
        ground_z=ground_plane(meta.ground_z),
    )


def inspect_clip(clip_id: str, data: Path, raw_root: Path) -> tuple[Inspected, float, int]:
    """A prepared clip at its own size, its frames a second, and its place in its split."""
    run_id, start = split_clip_id(clip_id)
    clips = ClipDataset(data, split_of(clip_id, data))
    sample = clips.clip(clip_id)
    row = clips.rows[sample.index]
    frames, fps = recorded_frames(raw_root, clip_id, clips.shape)
    skeletons = read_skeletons(find_run(raw_root, run_id), start, clips.shape[0])
    inspected = Inspected(
        title=clip_id,
        frames=frames,
        sem_ids=sample.sem_ids.numpy(),
        cameras=read_tensor(data / row.ids, f"{clip_id}.world_to_clip").numpy(),
        capsules=skeletons.capsules.astype(np.float64),
        part=skeletons.part,
        ground_z=row.ground_z,
    )
    return inspected, fps, sample.index


def split_of(clip_id: str, data: Path) -> Split:
    """The clip's split; `train`, which names the nearest ids, when it is unknown.

    Raises:
        UserError: the clip was dropped; says why.
    """
    path = data / "index/clips.jsonl"
    if not path.exists():
        raise UserError(f"{path}: not found: name a built data set with --data")
    for row in read_index(path):
        if row["clip_id"] == clip_id:
            if row["drop"]:
                raise UserError(f"clip {clip_id} was dropped ({row['reason']}): inspect its run")
            return row["split"]
    return "train"


def masked(inspected: Inspected, draw: tuple[int, int, int], coverage: Coverage) -> Inspected:
    """With the UNKNOWN mask of (seed, epoch, index)."""
    if any(side % CELL for side in inspected.sem_ids.shape[1:]):
        raise UserError(
            f"{inspected.title}: the mask needs sides that are multiples of {CELL}, the frames are "
            f"{inspected.sem_ids.shape[1:]}: inspect a prepared clip instead"
        )
    planes = Rates(text=0, cond=0, mask=1).draw(*draw).planes
    hidden, _ = mask_ids(inspected.sem_ids, inspected.cameras, inspected.ground_z, planes, coverage)
    return replace(inspected, sem_ids=hidden)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("target")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("data/gc25d_v10"))
    parser.add_argument("--raw-root", type=Path, default=Path("raw"))
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epoch", type=int)
    parser.add_argument("--index", type=int)
    parser.add_argument("--coverage", choices=get_args(Coverage), default="first_frame")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
