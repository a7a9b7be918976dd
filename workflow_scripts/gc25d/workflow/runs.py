"""The raw runs and where captures, prepared runs and the data set lie.

Imports no torch.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gc25d.errors import UserError
from gc25d.settings.tree import Settings

_TAR_PART = re.compile(r"(?:frames|stencil)-\d{1,6}\.tar")


def captured_root(settings: Settings) -> Path:
    """Where this pipeline's own captures lie: `<raw_root>/<source>`."""
    return Path(settings.raw_root) / settings.capture.source


def captured_scenes(settings: Settings) -> tuple[str, ...]:
    """The scenes that this pipeline captures; none where captures are only pointed at."""
    return () if settings.capture.source == "external" else settings.capture.scenes


def dataset_root(settings: Settings) -> Path:
    """`<data_root>/<dataset>`."""
    return Path(settings.data_root) / settings.dataset


def prepared_root(settings: Settings) -> Path:
    """The data set that holds the prepared runs: this one, or that of `prep.runs_of`."""
    return Path(settings.data_root) / (settings.prep.runs_of or settings.dataset)


def raw_runs(settings: Settings) -> dict[str, Path]:
    """Run id (`<scene>__<run>`) → folder of the raw run, sorted by run id.

    Raises:
        UserError: `raw_root` holds no run, or two subsets hold a run of the same id.
    """
    if settings.capture.source != "external":
        folders: Iterable[Path] = (
            captured_root(settings) / scene / f"run-{number:03d}"
            for scene in settings.capture.scenes
            for number in range(settings.capture.runs_per_scene)
        )
    else:
        folders = (meta.parent for meta in Path(settings.raw_root).glob("*/*/*/meta.json"))
    runs: dict[str, Path] = {}
    for folder in sorted(folders):
        run_id = f"{folder.parent.name}__{folder.name}"
        if run_id in runs:
            raise UserError(f"{runs[run_id]} and {folder} are both run {run_id}: rename one")
        runs[run_id] = folder
    if not runs:
        raise UserError(
            f"raw_root {settings.raw_root}: no captures found, expected "
            "<subset>/<scene>/<run>/meta.json (docs/raw-format.md)"
        )
    return dict(sorted(runs.items()))


def raw_files(settings: Settings, folder: Path) -> list[Path]:
    """What prep reads of a raw run.

    A run that this pipeline captures has all its files, made or to be made. Of somebody else's run
    a file may be missing, which is prep's to report and must not stop the other runs: the folder
    then stands for it, because its time changes when a file comes or goes.
    """
    names = _file_names(settings.geometry.frames)
    if settings.capture.source != "external":
        return [folder / name for name in names]
    present = present_files(folder, settings.geometry.frames)
    found = {path.name for path in present}
    missing = [name for name in names if name not in found and not _has_part(name, found)]
    return [*([folder] if missing else []), *present]


def present_files(folder: Path, frames: int) -> list[Path]:
    """The files of a raw run that are there and that prep reads."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    parts = sorted(name for name in found if _TAR_PART.fullmatch(name))
    return [folder / name for name in (*parts, *(n for n in _file_names(frames) if n in found))]


def _file_names(frames: int) -> list[str]:
    """The files of a raw run whose tars are in one piece."""
    names = ["frames.tar", "stencil.tar", "cameras.npz", "skeletons.npz", "meta.json"]
    return [*names, f"clips_{frames}.json"]


def _has_part(name: str, found: Iterable[str]) -> bool:
    stem, _, suffix = name.rpartition(".")
    return suffix == "tar" and any(
        part.startswith(f"{stem}-") and _TAR_PART.fullmatch(part) for part in found
    )


def check_shared_runs(settings: Settings, prepared: Path) -> None:
    """Refuse to prepare another data set's runs anew with other settings than its own.

    Raises:
        UserError: `prep.runs_of` names a data set whose settings, in `prepared`, are others.
    """
    shared = settings.prep.runs_of
    if shared not in ("", settings.dataset) and prepared.exists():
        raise UserError(
            f"prep.runs_of is {shared}, whose runs were prepared with another geometry, codec or "
            f"version of prep than now asked for ({prepared}): use its settings, build {shared} "
            "anew with these, or set prep.runs_of to ''"
        )


def check_val_runs(val_runs: Sequence[str], runs: Sequence[str]) -> None:
    """Every validation run exists, and there is one.

    Raises:
        UserError: names the run that does not exist and the closest that do.
    """
    if not val_runs:
        raise UserError(f"prep.val_runs is empty: hold out at least one of {', '.join(runs[:5])}")
    for name in val_runs:
        if name not in runs:
            close = difflib.get_close_matches(name, runs) or list(runs[:3])
            raise UserError(
                f"prep.val_runs holds {name}, which is none of the {len(runs)} runs: "
                f"did you mean {' or '.join(close)}?"
            )


def settings_paths(settings: Settings) -> dict[str, Path]:
    """Where each step's settings file lies: data settings with the data, the rest with the run."""
    data = dataset_root(settings) / "settings"
    return {
        "capture": captured_root(settings) / "settings.json",
        "prep": prepared_root(settings) / "settings/prep.json",
        "text": data / "text.json",
        "index": data / "index.json",
        "train": Path("train/settings.json"),
        "eval": Path("eval/settings.json"),
        "regression": Path("regression/settings.json"),
    }
