"""Training states on disk: where they lie, which one counts, which ones go.

`states/step-<n>/` holds, per process that saved it, `.safetensors` parts and a record with their
digests and the place of every fragment; `manifest.json`, written last, has the records' digests.
A folder without a whole manifest is no state. docs/resume.md describes the format.

Nothing is removed that was not just read and found to be this run's: superseded by newer states, or
broken. Errors of reading, other formats and other bindings are no reason to remove anything.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gc25d.errors import UserError
from gc25d.train.states.files import (
    PREFIX,
    BrokenState,
    StoredState,
    UnknownState,
    check_digests,
    check_sizes,
    open_state,
    step_of,
)
from gc25d.train.states.storage import remove_state

logger = logging.getLogger(__name__)

KEPT_STATES = 2


@dataclass(frozen=True)
class OwnStates:
    """The states of this run and format, by step; one that could not be read is in neither."""

    whole: list[StoredState]
    """Every file is there in its size."""
    broken: list[StoredState]
    """Read, and not whole."""

    @property
    def folders(self) -> list[Path]:
        """Those that lie here; states that are links take no space here."""
        both = (state.folder for state in (*self.broken, *self.whole))
        return sorted((folder for folder in both if not folder.is_symlink()), key=step_of)


def state_folder(root: Path, step: int) -> Path:
    """Where the state after `step` lies."""
    return root / f"{PREFIX}{step:07d}"


def building_folder(root: Path, step: int) -> Path:
    """Where it is written; one that a kill left there is removed at the next start."""
    return root / f".{state_folder(root, step).name}.tmp"


def newest_state(roots: Sequence[Path], until: int, binding: str) -> StoredState | None:
    """The newest whole state at or before step `until`, of this binding, in any of `roots`.

    A broken state is named and passed over for an older one. States of another binding are named
    and do not count.

    Returns:
        None when no state that old was ever written.

    Raises:
        UserError: there are states, but none is whole and of this binding; or one cannot be read.
    """
    candidates = [folder for root in roots for folder in folders(root) if step_of(folder) <= until]
    foreign = []
    for folder in sorted(candidates, key=step_of, reverse=True):
        try:
            state = open_state(folder)
            if state.binding != binding:
                foreign.append(folder)
                logger.warning("%s is of other settings or data: not counted", folder)
                continue
            check_digests(state)
        except BrokenState as error:
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
    earlier = [s for r in roots for s in own_states(r, state.step - 1, state.binding).whole]
    return max((found.step for found in earlier if found.checkpoint), default=0)


def newest_step(root: Path, binding: str) -> int:
    """The step of the newest state that says it is of this binding; 0 when there is none.

    Raises:
        UserError: a state cannot be read.
    """
    return max((step_of(f) for f in folders(root) if binding_of(f) == binding), default=0)


def binding_of(folder: Path) -> str | None:
    """None where a manifest is broken: nobody knows whose state that was.

    Raises:
        UnknownState: it could not be read.
    """
    try:
        return open_state(folder).binding
    except BrokenState:
        return None


def own_states(root: Path, step: int, binding: str) -> OwnStates:
    """This run's states up to `step`, in the format of this version."""
    whole: list[StoredState] = []
    broken: list[StoredState] = []
    for folder in folders(root):
        if step_of(folder) > step:
            continue
        try:
            state = open_state(folder)
            if state.binding != binding:
                continue
            fault = _fault(state)
        except BrokenState:
            continue  # of its manifest: nobody knows whose it was
        except UnknownState as error:
            logger.warning("%s is neither counted nor removed: %s", folder, error)
            continue
        (broken if fault else whole).append(state)
    return OwnStates(whole, broken)


def _fault(state: StoredState) -> str:
    """What is wrong with a state's files, going by their sizes; "" for nothing."""
    try:
        check_sizes(state)
    except BrokenState as error:
        return str(error)
    return ""


def prune_states(root: Path, step: int, binding: str) -> None:
    """After a save at `step`: keep the newest two states up to it and the newest segment end.

    Only this run's states go, those superseded and those broken. States after `step`, of another
    binding or format, and whatever cannot be read, are not counted and stay. A state that cannot be
    removed is named, and tried again after the next save.
    """
    try:
        own = own_states(root, step, binding)
    except UnknownState as error:
        logger.warning("%s: no older state is removed", error)
        return
    ends = [state for state in own.whole if state.checkpoint]
    kept = [*own.whole[-KEPT_STATES:], *ends[-1:]]
    for state in (*own.broken, *own.whole):
        if state not in kept:
            _remove_whole(state.folder)


def _remove_whole(folder: Path) -> None:
    """Take its name away first: a kill half-way leaves no folder that looks like a broken state."""
    going = folder.with_name(f".{folder.name}.removed.tmp")
    try:
        folder.rename(going)
        remove_state(going)
    except OSError as error:
        logger.warning("%s could not be removed (%s): it stays for now", folder, error)


def make_way(folder: Path, binding: str) -> None:
    """Rename what lies where a state of this run is to lie, unless it is this run's own."""
    if not os.path.lexists(folder):
        return
    try:
        found = open_state(folder).binding
        if found == binding:
            return
        why = "of other settings or data"
    except UserError:
        why = "not known to be this run's"
    number = 1
    while os.path.lexists(aside := folder.with_name(f"{folder.name}.other-{number}")):
        number += 1
    folder.rename(aside)
    logger.warning("%s is %s: moved to %s", folder, why, aside.name)


def removable_states(root: Path, step: int, binding: str) -> list[Path]:
    """What may go when the disk is full: every own state up to `step` but the newest whole one."""
    own = own_states(root, step, binding)
    newest = [state.folder for state in own.whole[-1:]]
    return [folder for folder in own.folders if folder not in newest]


def remove_leftovers(root: Path) -> None:
    """Remove what a killed save left half-written, or half-removed."""
    for leftover in root.glob(f".{PREFIX}*.tmp"):
        logger.info("%s was left by a killed save: removed", leftover)
        remove_state(leftover)


def folders(root: Path) -> list[Path]:
    """The states' folders by step; what else lies there is left alone.

    Raises:
        UnknownState: `root` is there and cannot be listed, or is a link to nowhere.
    """
    try:
        names = [path.name for path in root.iterdir()]
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not root.is_symlink():
            return []
        where = f"is a link to {root.readlink()}, which" if root.is_symlink() else "which"
        raise UnknownState(
            f"{root}: {where} cannot be listed ({error.strerror}): nobody knows which states are "
            "there. Mount the disk or mend the link, then give the same command again"
        ) from None
    numbered = ((name.removeprefix(PREFIX), root / name) for name in names)
    states = (path for number, path in numbered if number.isascii() and number.isdigit())
    return sorted((p for p in states if p == state_folder(root, step_of(p))), key=step_of)
