"""Join the rows of all prepared runs into the index of the data set, and declare it ready.

Inputs:   --settings  the step's settings (splits, buried clips, limit, strict, batch)
          --rows      every run's rows, <folder>/index/runs/<run_id>.jsonl: <folder>, of this data
                      set or of one that shares its runs, holds latents/ and ids/ too
          --table     the text table
          --root      the data folder
Outputs:  --clips     index/clips.jsonl, one row a clip, sorted by clip id
          --ready     READY: counts, each run's cropping and scaling, geometry, steps per epoch,
                      fingerprint; written last

Validation runs or buried clips that do not exist are errors, and so is a split without clips.
Faults of clips and runs (docs/dataset.md) are reported, and are errors when `strict` is set.

Example:
  python -m gc25d.steps.build_index --settings settings/index.json
    --rows data/gc25d_v10/index/runs/*.jsonl --table data/gc25d_v10/text/table.safetensors
    --root data/gc25d_v10 --clips data/gc25d_v10/index/clips.jsonl --ready data/gc25d_v10/READY
"""

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gc25d.dataset.order import Schedule
from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.prep.faults import find_faults, refuse_faults
from gc25d.prep.index import (
    Choice,
    build_rows,
    check_split,
    count_clips,
    equal_clips,
    failed_runs,
    fingerprint,
    picture_crops,
)
from gc25d.prep.rows import IndexRow, RunRow, read_run_rows
from gc25d.prep.store import tensor_names
from gc25d.prep.text import cut_faults, read_table
from gc25d.records import write_json, write_jsonl
from gc25d.settings.steps import IndexStep, load_step
from gc25d.steps import cli

logger = logging.getLogger(__name__)

_NAMED = 5
"""Faults that the warning names; the log has all of them."""


def main(arguments: argparse.Namespace) -> None:
    """Build the index; nothing is written unless all of it is sound."""
    settings = load_step(arguments.settings, IndexStep)
    size = settings.geometry
    rows = list(read_rows(arguments.rows))
    buried = frozenset(settings.buried)
    faults = find_faults(rows, buried)
    report_faults(faults, settings.strict)
    choice = Choice(frozenset(settings.val_runs), buried, settings.limit, settings.limit_seed)
    prepared = os.path.relpath(arguments.rows[0].parents[2], arguments.root)
    index = build_rows(rows, choice, (size.frames, size.height, size.width), prepared)
    check_split(index)
    check_files(arguments.root, index)
    table = read_table(arguments.table)
    check_keys(index, table.keys)
    cut = cut_faults(table)
    report_faults(cut, settings.strict)
    twins = {val: f"has the latents of {train} (train)" for train, val in equal_clips(index)}
    report_faults(twins, settings.strict)
    counts = count_clips(index)
    schedule = Schedule(counts["usable_train"], settings.global_batch, settings.grad_accum, seed=0)
    geometry = {"frames": size.frames, "height": size.height, "width": size.width}
    write_jsonl(arguments.clips, index)
    write_json(
        arguments.ready,
        {
            "counts": counts,
            "failed_runs": failed_runs(rows),
            "pictures": picture_crops(rows),
            "faults": len(faults) + len(cut) + len(twins),
            "geometry": geometry,
            "steps_per_epoch": schedule.steps_per_epoch,
            "fingerprint": fingerprint(index, geometry, digest_file(arguments.table)),
        },
    )
    logger.info("%s, %d steps an epoch", counts, schedule.steps_per_epoch)


def read_rows(paths: Iterable[Path]) -> Iterator[RunRow]:
    """All runs' rows without what the index does not keep; equal text keys share their memory."""
    for path in paths:
        for row in read_run_rows(path):
            if "clip_id" in row:
                row.pop("prompts", None)
                row["text_keys"] = [sys.intern(key) for key in row["text_keys"]]
            yield row


def report_faults(faults: Mapping[str, str], strict: bool) -> None:
    """Log every fault, and fail on any when `strict`.

    Raises:
        UserError: lists the faults.
    """
    for name, reason in faults.items():
        logger.info("fault: %s: %s", name, reason)
    if strict:
        refuse_faults(faults)
    if faults:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(faults.items())[:_NAMED])
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        logger.warning("faults (%d): %s%s", len(faults), listed, more)


def check_files(root: Path, index: Sequence[IndexRow]) -> None:
    """Refuse an index whose tensor files lack one of its usable clips.

    Raises:
        UserError: names the clip and the file.
    """
    usable = [row for row in index if not row["drop"]]
    paths = {path for row in usable for path in (row["paths"]["latents"], row["paths"]["ids"])}
    held = {path: tensor_names(root / path) for path in sorted(paths)}
    for row in usable:
        latents, ids = row["paths"]["latents"], row["paths"]["ids"]
        clip_id = row["clip_id"]
        for path, name in (
            (latents, clip_id),
            (ids, f"{clip_id}.ids"),
            (ids, f"{clip_id}.world_to_clip"),
        ):
            if name not in held[path]:
                raise UserError(f"{root / path} lacks {name}: delete the file and rerun")


def check_keys(index: Sequence[IndexRow], keys: Sequence[str]) -> None:
    """Refuse an index with a text key that the table lacks.

    Raises:
        UserError: names the clip and the key.
    """
    known = set(keys)
    for row in index:
        if not row["drop"] and (unknown := set(row["text_keys"]) - known):
            raise UserError(
                f"clip {row['clip_id']}: text key {min(unknown)!r} is not in the text table: "
                "delete the table and rerun"
            )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
