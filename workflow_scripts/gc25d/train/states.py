"""Training states on disk: where they lie, which one counts, which ones go.

`states/step-<n>/` holds, per process that saved it, `.safetensors` parts and a record with their
digests and the place of every fragment; `manifest.json`, written last, has the records' digests.
A folder without a whole manifest is no state. docs/resume.md describes the format.
"""

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.records import digest_file, digest_json, read_json

logger = logging.getLogger(__name__)

FORMAT = 2
MANIFEST = "manifest.json"
KEPT_STATES = 2
DIGEST_THREADS = 8
_PREFIX = "step-"


@dataclass(frozen=True)
class StoredState:
    """A state on disk whose manifest is whole."""

    folder: Path
    step: int
    """Optimizer steps behind it."""
    checkpoint: bool
    """Whether it is a segment's end."""
    binding: str
    """Digest of the settings and data that it belongs to."""
    records: Mapping[str, Mapping[str, Any]]
    """Each process's record: file name → size and SHA-256."""
    segment_start: int | None = None
    """Step at which the segment began that saved it; None where an earlier version did."""


def state_folder(root: Path, step: int) -> Path:
    """Where the state after `step` lies."""
    return root / f"{_PREFIX}{step:07d}"


def building_folder(root: Path, step: int) -> Path:
    """Where it is written; one that a kill left there is removed at the next start."""
    return root / f".{state_folder(root, step).name}.tmp"


def open_state(folder: Path) -> StoredState:
    """Read a state's manifest.

    Raises:
        UserError: it is missing, cut, changed, or of a format that this version does not know.
    """
    path = folder / MANIFEST
    sealed = read_json(path)
    if not isinstance(sealed, dict) or sealed.get("format") != FORMAT:
        raise UserError(f"{path}: not a manifest of format {FORMAT}: restore or delete {folder}")
    content = {key: value for key, value in sealed.items() if key != "sha256"}
    if sealed != seal(content) or content["step"] != _step(folder):
        raise UserError(f"{path}: does not match its own digest: restore or delete {folder}")
    known = {key: content[key] for key in ("step", "checkpoint", "binding", "records")}
    return StoredState(folder, **known, segment_start=content.get("segment_start"))


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest's content with its digest."""
    return {**content, "sha256": digest_json(content)}


def newest_state(roots: Sequence[Path], until: int, binding: str) -> StoredState | None:
    """The newest whole state at or before step `until`, of this binding, in any of `roots`.

    A damaged state is named and passed over for an older one. States of another binding are named
    and do not count.

    Returns:
        None when no state that old was ever written.

    Raises:
        UserError: there are states, but none is whole and of this binding.
    """
    candidates = [folder for root in roots for folder in _folders(root) if _step(folder) <= until]
    foreign = []
    for folder in sorted(candidates, key=_step, reverse=True):
        try:
            state = open_state(folder)
            if state.binding != binding:
                foreign.append(folder)
                logger.warning("%s is of other settings or data: not counted", folder)
                continue
            _check_digests(state)
        except UserError as error:
            logger.warning("%s is damaged (%s): passed over for an older state", folder, error)
        else:
            return state
    if foreign and len(foreign) == len(candidates):
        raise UserError(
            f"{foreign[0]} was trained with other settings or data than this run is bound to: "
            "set it aside with `python -m gc25d.steps.restart`, or train in another --directory"
        )
    if candidates:
        raise UserError(
            f"{candidates[0].parent}: none of the {len(candidates)} states up to step {until} is "
            "whole: restore one, or set the run aside with `python -m gc25d.steps.restart`; "
            "training never starts over by itself"
        )
    return None


def segment_start(state: StoredState, roots: Sequence[Path], until: int) -> int:
    """Where the segment began, or begins, that goes on from `state` to step `until`.

    Not where an attempt starts: a killed segment goes on from a state that it saved itself, which
    says where the segment began. Only a segment's end is a checkpoint to begin at.
    """
    if state.checkpoint and state.step < until:
        return state.step
    if state.segment_start is not None:
        return state.segment_start
    earlier = [f for root in roots for f in own_states(root, state.step - 1, state.binding)]
    whole = (found for folder in earlier if (found := _state_of_right_size(folder)))
    return max((found.step for found in whole if found.checkpoint), default=0)


def newest_step(root: Path, binding: str) -> int:
    """The step of the newest state of this binding, whole or not; 0 when there is none."""
    return max((_step(f) for f in _folders(root) if _binding(f) in (binding, None)), default=0)


def own_states(root: Path, step: int, binding: str) -> list[Path]:
    """Folders up to `step` of this binding or without a readable one, by step."""
    return [f for f in _folders(root) if _step(f) <= step and _binding(f) in (binding, None)]


def prune_states(root: Path, step: int, binding: str) -> None:
    """After a save at `step`: keep the newest two states up to it and the newest segment end.

    States after `step` or of another binding are not counted and stay.
    """
    kept = _kept(root, step, binding)
    for folder in own_states(root, step, binding):
        if folder not in kept:
            shutil.rmtree(folder)


def _kept(root: Path, step: int, binding: str) -> set[Path]:
    whole = [state for f in own_states(root, step, binding) if (state := _state_of_right_size(f))]
    ends = [state for state in whole if state.checkpoint]
    return {state.folder for state in (*whole[-KEPT_STATES:], *ends[-1:])}


def set_aside_foreign(folder: Path, binding: str) -> None:
    """Rename a state of another binding that lies where one of this run is to lie."""
    if not folder.exists() or _binding(folder) in (binding, None):
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.other-{number}")).exists():
        number += 1
    folder.rename(aside)
    logger.warning("%s is of other settings or data: moved to %s", folder, aside.name)


def removable_states(root: Path, step: int, binding: str) -> list[Path]:
    """What may go when the disk is full: every own state up to `step` but the newest whole one."""
    own = own_states(root, step, binding)
    whole = [folder for folder in own if _state_of_right_size(folder)]
    return [folder for folder in own if folder not in whole[-1:]]


def remove_leftovers(root: Path) -> None:
    """Remove what a killed save left half-written."""
    for leftover in root.glob(f".{_PREFIX}*.tmp"):
        logger.info("%s was left by a killed save: removed", leftover)
        shutil.rmtree(leftover)


def _folders(root: Path) -> list[Path]:
    """The states' folders by step; what else lies there is left alone."""
    named = (p for p in root.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdigit())
    return sorted(named, key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix(_PREFIX))


def _binding(folder: Path) -> str | None:
    """None when the manifest is not readable."""
    try:
        return open_state(folder).binding
    except UserError:
        return None


def _state_of_right_size(folder: Path) -> StoredState | None:
    """A state whose files are there in their sizes; their content is not read."""
    try:
        state = open_state(folder)
        _check_sizes(folder, state.records)
        for name in state.records:
            _check_sizes(folder, read_json(folder / name)["files"])
    except UserError:
        return None
    return state


def _check_digests(state: StoredState) -> None:
    """Every file is there, in its size, with its content.

    Raises:
        UserError: names the first that is not.
    """
    _check_files(state.folder, state.records)
    for name in state.records:
        _check_files(state.folder, read_json(state.folder / name)["files"])


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    _check_sizes(folder, files)
    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        digests = pool.map(digest_file, (folder / name for name in files))
        for name, digest in zip(files, digests, strict=True):
            if digest != files[name]["sha256"]:
                raise UserError(f"{name} does not match its digest")


def _check_sizes(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, expected in files.items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{name} is missing")
        size = path.stat().st_size
        if size != expected["size"]:
            raise UserError(f"{name} has {size} bytes, expected {expected['size']}")


def folder_bytes(folders: Iterable[Path]) -> int:
    """The bytes of all files in these folders."""
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*"))
