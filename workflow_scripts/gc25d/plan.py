"""What the rules need to know at parse time: settings, runs, the checkpoint chain.

Imports no torch. Raises `UserError`, whose message the Snakefile prints as it is.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gc25d.errors import UserError
from gc25d.processes import check_processes, choose_engine, processes_per_node
from gc25d.records import read_json
from gc25d.settings import Settings

_TAR_PART = re.compile(r"(?:frames|stencil)-\d{1,6}\.tar")
PLACED = Path("train/placed.json")
"""The step at which a state of an older format was placed (gc25d.steps.place_state), if one was."""


def load_settings(config: dict[str, Any]) -> Settings:
    """Validate a configuration.

    Raises:
        UserError: one line per unknown or illegal value, with its key, the value and what is legal.
    """
    try:
        settings = Settings.model_validate(config)
    except ValidationError as error:
        lines = [_explain(dict(problem)) for problem in error.errors()]
        raise UserError("config: " + "\nconfig: ".join(lines)) from None
    check_processes(settings.train, settings.hardware)
    return settings


def _explain(problem: dict[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path) or "settings"
    if problem["type"] == "extra_forbidden":
        known = _keys_beside(path)
        close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        meant = f"did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "remove it"
        return f"{key} is not a setting: {meant} (known here: {', '.join(known)})"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return "\nconfig: ".join(f"{key}: {fault}" for fault in message.splitlines())
    quoted = ": put it in quotes" if problem["type"] == "string_type" else ""
    return f"{key} is {problem['input']!r}: {message[0].lower()}{message[1:]}{quoted}"


def _keys_beside(path: list[str]) -> list[str]:
    """The known keys of the section in which `path` stands."""
    section: type[BaseModel] = Settings
    for part in path[:-1]:
        annotation = section.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        section = annotation
    return list(section.model_fields)


def alternatives(names: Iterable[str]) -> str:
    """A pattern that matches these names and nothing else."""
    return "|".join(re.escape(name) for name in names) or "(?!)"


def training_processes(settings: Settings) -> tuple[str, int]:
    """The training engine, and how many processes a node has."""
    train, hardware = settings.train, settings.hardware
    per_node = processes_per_node(hardware)
    return choose_engine(train.engine, hardware.nodes * per_node), per_node


def training_memory_gb(settings: Settings) -> int:
    """Host memory of a training job on each node, GB."""
    hardware = settings.hardware
    usual = 200 if hardware.gpus_per_node else 4 * processes_per_node(hardware)
    return hardware.train_memory_gb or usual


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


def checkpoint_before(step: int, every: int) -> int:
    """The chain's checkpoint from which a segment that ends at `step` starts; 0 is the start."""
    return (step - 1) // every * every


def weights_file(step: int) -> Path:
    """The weights of a checkpoint."""
    return Path(f"train/step-{step}/weights.safetensors")


def placed_step() -> int:
    """The step at which this run took over a state of an older format; 0 when it started itself."""
    return int(read_json(PLACED)["step"]) if PLACED.exists() else 0


def checkpoint_files(step: int, *, averaged: bool) -> list[Path]:
    """The files of a checkpoint; with `train.ema` the moving average is among them."""
    names = ["weights.safetensors", "probe.safetensors", "done.json"]
    averages = ["ema.safetensors", "ema_probe.safetensors"] if averaged else []
    return [weights_file(step).with_name(name) for name in (*names, *averages)]


def needed_before(step: int, every: int) -> int:
    """The checkpoint that must be trained before `step`, 0 for none.

    Where a later one already stands between the two (`checkpoint_every` was changed), a placed
    state lies behind it, or the state after it is still there, training goes on from there.
    """
    before = checkpoint_before(step, every)
    if before <= placed_step() or _has_state(before, step):
        return 0
    between = any(weights_file(done).exists() for done in range(before + 1, step))
    return 0 if between and not weights_file(before).exists() else before


def _has_state(before: int, step: int) -> bool:
    """Whether training left a state from which `step` is reached without the checkpoint before."""
    found = (path.parent.name for path in Path("train/states").glob("step-*/manifest.json"))
    return any(before <= int(name[5:]) <= step for name in found if name[5:].isdigit())


def dated_files(settings: Settings) -> list[Path]:
    """Files, there or not, whose times say whether clocks agree."""
    last = settings.train.max_steps
    results = (f"exports/step-{last}.safetensors", f"eval/step-{last}/metrics.json")
    made = [Path(name) for name in ("train/binding.json", *results)]
    return [*settings_files(settings).values(), dataset_root(settings) / "READY", *made]


def settings_files(settings: Settings) -> dict[str, Path]:
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


def references_path(
    settings: Settings, device: str, repository: Path, *, made: bool = False
) -> Path:
    """References to compare with: `regression.refs_root`, else `refs/` here, else the tracked.

    `made`: those here are made before the comparison, and count as there.
    """
    root = settings.regression.refs_root
    here = Path("refs").resolve() / f"{device}.json"
    folders = [Path(root)] if root else [Path("refs"), repository / "refs"]
    paths = [folder.resolve() / f"{device}.json" for folder in folders]
    return next((p for p in paths if p.exists() or (made and p == here)), paths[-1])


def cache_environment(settings: Settings) -> dict[str, str]:
    """Variables that keep every cache and temporary file below `cache_root`, and hubs off.

    ViZDoom loads OpenAL even without sound, and PulseAudio's client then writes into the home
    directory: no driver of OpenAL's is used.
    """
    root = Path(settings.cache_root).resolve()
    folders = {
        "HF_HOME": "huggingface",
        "MPLCONFIGDIR": "matplotlib",
        "TMPDIR": "tmp",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TORCH_EXTENSIONS_DIR": "torch_extensions",
        "TRITON_CACHE_DIR": "triton",
        "XDG_CACHE_HOME": "xdg",
    }
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    silent = {"ALSOFT_DRIVERS": "null"}
    return {name: str(root / folder) for name, folder in folders.items()} | offline | silent
