"""A segment's states: which folder it works in, where it goes on from, when it saves."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from gc25d.errors import UserError
from gc25d.methods.base import TrainingMethod
from gc25d.methods.roles import STUDENT
from gc25d.train.ema import Ema
from gc25d.train.engine import Engine, SharedError
from gc25d.train.history.chain import checkpoints
from gc25d.train.states.files import StoredState, open_state
from gc25d.train.states.folder import newest_state, segment_start, state_folder
from gc25d.train.states.fragments import EMA, Fragment
from gc25d.train.states.reader import load_state, read_whole, shapes_of
from gc25d.train.states.writer import StateWriter

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class States:
    """Saves the states of a segment, each process its part."""

    def __init__(
        self,
        root: Path,
        engine: Engine,
        fragments: Sequence[Fragment],
        ema: Ema | None,
        *,
        binding: str,
        start: int,
        segment_start: int,
        until: int,
    ) -> None:
        """See that the disk holds them.

        Args:
            root: folder of the states.
            engine: of this process.
            fragments: this process's part of the live state.
            ema: the moving average among them, if there is one.
            binding: of the run.
            start: step from which training goes on.
            segment_start: step at which the segment began, perhaps in an earlier attempt.
            until: the segment's last step, whose state starts the next segment.

        Raises:
            UserError: two states do not fit on the disk.
        """
        self.fragments, self.ema = fragments, ema
        self.binding, self.segment_start, self.until = binding, segment_start, until
        self.writer = StateWriter(
            root,
            engine.rank,
            engine.world_size,
            processes_per_host=engine.processes_per_host,
        )
        self.writer.prepare(fragments, start, binding)

    def average(self) -> None:
        """Take the weights after an optimizer step into their moving average."""
        if self.ema is not None:
            self.ema.update()

    def save(self, step: int) -> None:
        """Start writing the state after `step`."""
        self.writer.save(
            step,
            self.fragments,
            binding=self.binding,
            checkpoint=step == self.until,
            segment_start=self.segment_start,
        )


def resume(
    method: TrainingMethod,
    engine: Engine,
    fragments: Sequence[Fragment],
    roots: Sequence[Path],
    *,
    until: int,
    binding: str,
) -> tuple[int, int]:
    """Load the newest whole state at or before step `until`.

    The first process chooses and checks it; each reads its own part, whoever wrote it.

    Returns:
        Its step, and the step at which the segment began; 0 and 0 without a state.

    Raises:
        UserError: no state is whole although there are some, or they belong to another run.
    """
    began = time.monotonic()

    def choose() -> tuple[StoredState, int] | None:
        state = find_state(roots, until, binding)
        return (state, segment_start(state, roots, until)) if state else None

    chosen = from_first(engine, choose)
    if chosen is None:
        return 0, 0
    state, segment_began = chosen
    shapes = {k: v for held in engine.gather(shapes_of(fragments)) for k, v in held.items()}
    load_state(state, fragments, shapes)
    engine.after_load(method)
    method.resume_schedules(state.step)
    logger.info(
        "going on from %s, checked and loaded in %.1f s", state.folder, time.monotonic() - began
    )
    return state.step, segment_began


def find_state(roots: Sequence[Path], until: int, binding: str) -> StoredState | None:
    """The newest whole state, see `newest_state`; tells which checkpoints are trained again."""
    state = newest_state(roots, until, binding)
    chain, *aside = roots
    start = state.step if state else 0
    again = [step for step in checkpoints(chain.parent) if start < step < until]
    if again and not aside:
        logger.warning(
            "the newest state is of step %d although train/step-%d was trained: the steps between "
            "are trained again",
            *(start, again[-1]),
        )
    return state


def averaged_weights(roots: Sequence[Path], step: int) -> dict[str, Tensor]:
    """The student's moving average after `step`, bf16 by native name, from its state on disk.

    A process holds but a part of it; the state has the whole.
    """
    # The last root is where this segment saved, unless it found that very step in another.
    folders = [state_folder(root, step) for root in reversed(roots)]
    state = open_state(next(folder for folder in folders if folder.exists()))
    found = read_whole(state, EMA)
    return {name.removeprefix(f"{STUDENT}/"): mean.bfloat16() for name, mean in found.items()}


def from_first(engine: Engine, find: Callable[[], Found]) -> Found:
    """What the first process finds, on every process.

    Raises:
        SharedError: the first process found an error.
    """
    found: Found | None = None
    fault = ""
    if engine.rank == 0:
        try:
            found = find()
        except UserError as error:
            fault = str(error)
    told = engine.gather((found, fault))[0]
    if told[1]:
        raise SharedError(told[1])
    return told[0]  # type: ignore[return-value]
