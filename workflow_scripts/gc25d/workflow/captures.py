"""Captures that cannot be the ones that were meant are refused before anything starts.

Called at parse time, dry runs included, so it looks no further than the first run that settles a
question. Imports no torch.
"""

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import read_json
from gc25d.settings.tree import Settings

_TABLE = re.compile(r"clips_(\d{1,6})\.json")
_LISTED_RUNS = 100
"""Runs whose folders are listed to say which lengths of clips there are."""


def check_captures(settings: Settings, runs: Mapping[str, Path]) -> None:
    """Refuse captures that `capture.source` and `geometry.frames` do not fit.

    Args:
        settings: of the whole pipeline.
        runs: run id → folder of the raw run.

    Raises:
        UserError: `raw_root` holds runs that `capture.source` does not make, or no run of a split
            has clips of `geometry.frames` frames.
    """
    if settings.capture.source == "external":
        held_out = set(settings.prep.val_runs)
        for split, wanted in (("training", False), ("validation", True)):
            folders = [folder for name, folder in runs.items() if (name in held_out) is wanted]
            check_clip_tables(split, folders, settings.geometry.frames, settings.raw_root)
    else:
        check_source(Path(settings.raw_root), settings.capture.source)


def check_source(raw_root: Path, source: str) -> None:
    """Refuse to capture into a folder that holds captures which `source` did not make.

    Raises:
        UserError: names the first such run.
    """
    for subset in _folders(raw_root):
        for scene in _folders(subset):
            run = next((run for run in _folders(scene) if (run / "meta.json").is_file()), None)
            if run and (subset.name != source or _source_of(run) not in ("", source)):
                raise UserError(
                    f"raw_root {raw_root} holds {run.relative_to(raw_root)}, which is no capture "
                    f"of capture.source {source}: set capture.source: external to use what is "
                    "there, or raw_root to another folder to capture into"
                )


def check_clip_tables(split: str, folders: Sequence[Path], frames: int, raw_root: str) -> None:
    """Refuse runs if none of them is cut into clips of `frames` frames; prep names single ones.

    Raises:
        UserError: names the lengths that there are.
    """
    table = f"clips_{frames}.json"
    if not folders or any((folder / table).is_file() for folder in folders):
        return
    lengths = _clip_lengths(folders[:_LISTED_RUNS])
    found = " and ".join(map(str, lengths))
    ways = f"set geometry.frames to {' or '.join(map(str, lengths))}, or " if lengths else ""
    raise UserError(
        f"geometry.frames is {frames}, but no {split} run below raw_root {raw_root} has {table}"
        + (f", only clips of {found} frames" if lengths else " or other clips")
        + f": {ways}cut the runs and write {table} (docs/raw-format.md)"
    )


def _clip_lengths(folders: Iterable[Path]) -> list[int]:
    """The lengths for which any of the runs has a table of clips, frames."""
    names = itertools.chain.from_iterable(map(os.listdir, folders))
    return sorted({int(match[1]) for match in map(_TABLE.fullmatch, names) if match})


def _folders(parent: Path) -> list[Path]:
    """The folders in `parent`, sorted, hidden ones left out; none where it is missing."""
    if not parent.is_dir():
        return []
    with os.scandir(parent) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    return [parent / name for name in sorted(names)]


def _source_of(run: Path) -> str:
    """The source that a run's meta.json names; "" where it is damaged, which prep reports."""
    try:
        meta = read_json(run / "meta.json")
    except UserError:
        return ""
    return str(meta.get("source", "")) if isinstance(meta, dict) else ""
