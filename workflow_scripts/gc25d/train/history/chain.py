"""Where the run's chain stands, by its states, checkpoints and history; what a start must refuse.

A run whose states are out of reach (a disk that is not mounted, a dangling link) looks like one
that has not begun. Nothing starts over, and nothing is trained aside, without a word.
"""

import logging
import os
import re
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import read_json
from gc25d.train.history.events import HISTORY, events
from gc25d.train.states.files import step_of
from gc25d.train.states.folder import binding_of, folders, newest_step
from gc25d.workflow.chain import PLACED

logger = logging.getLogger(__name__)

STATES = "states"
ASIDE = "aside"
RESTART = "`python -m gc25d.steps.restart`"
_CHECKPOINT = re.compile(r"step-([1-9][0-9]*)")


def segment_folder(run: Path, until: int, binding: str) -> Path:
    """The run's own folder, or one aside for a step behind the chain's newest state or checkpoint.

    Raises:
        UserError: states cannot be read, or are gone although the chain has been trained.
    """
    root = run / STATES
    check_places(root)
    reached = max([newest_step(root, binding), *checkpoints(run)])
    refuse_lost_states(run, until, binding)
    tell_deleted_checkpoints(run)
    if reached <= until:
        return run
    aside = run / ASIDE / f"step-{until}"
    check_places(aside / STATES)
    logger.warning(
        "step %d is behind the chain, which is at %d: trained in %s", until, reached, aside
    )
    return aside


def check_places(root: Path) -> None:
    """See that every state can be looked at; tell of those that nobody can know.

    Raises:
        UserError: `root` cannot be listed, a state cannot be read or is of another format.
    """
    for folder in folders(root):
        if binding_of(folder) is None:
            logger.warning("%s has no whole manifest: it does not count as a state", folder)


def checkpoints(run: Path) -> list[int]:
    """The steps of the finished checkpoints below `run`: their done.json says the same step."""
    return sorted(
        int(match[1])
        for entry in (os.scandir(run) if run.is_dir() else ())
        if (match := _CHECKPOINT.fullmatch(entry.name)) and _done(Path(entry.path)) == int(match[1])
    )


def _done(checkpoint: Path) -> int | None:
    """None for a folder that holds no finished checkpoint."""
    try:
        content = read_json(checkpoint / "done.json")
    except UserError:
        return None
    return content.get("step") if isinstance(content, dict) else None


def refuse_lost_states(run: Path, until: int, binding: str) -> None:
    """Refuse to begin at step 0 where the run once had a state.

    Where states up to `until` are there, `newest_state` says what is wrong with them.

    Raises:
        UserError: no state of this run is there, but it was trained.
    """
    root = run / STATES
    if any(step_of(f) <= until or binding_of(f) == binding for f in folders(root)):
        return
    trace = trace_of_states(run)
    if trace:
        raise UserError(
            f"{root}: holds no state of this run, but {trace}. Nothing was started: mount the disk "
            "or restore the states and give the same command again, or set the run aside with "
            f"{RESTART} to begin at step 0"
        )


def trace_of_states(run: Path) -> str:
    """What says that this run had a state: a checkpoint, its history; "" for nothing."""
    done = checkpoints(run)
    if done:
        return f"{run / f'step-{done[-1]}'} was trained"
    placed = run / PLACED.name
    if placed.exists():
        return f"{placed} says that one was placed"
    told = [row["step"] for row in events(run) if row["event"] in ("resume", "stop", "finish")]
    if any(told):
        return f"{run / HISTORY} tells of one of step {max(told)}"
    return ""


def tell_deleted_checkpoints(run: Path) -> None:
    """Where finished checkpoints are gone, say what is left, and how to begin another run."""
    finished = {row["step"] for row in events(run) if row["event"] == "finish"}
    gone = sorted(finished.difference(checkpoints(run)))
    if not gone:
        return
    left = ["run.json", STATES, HISTORY, "train_log.csv", "tensorboard"]
    logger.warning(
        "%s: finished before, and gone (deleted, perhaps with --delete-all-output). What is left "
        "is still that run (%s): training goes on from it. For a new run, first give %s",
        ", ".join(str(run / f"step-{step}") for step in gone),
        ", ".join(str(run / name) for name in left if (run / name).exists()),
        RESTART,
    )
