"""Targets given on the command line: understood before the DAG is built, kept when it has run."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gc25d.errors import UserError

_SHOWN = 3
_AVERAGED = re.compile(r"(exports|verify|eval|train)/step-[1-9][0-9]*-ema(?=[./]|$)")


def spelled(target: str) -> str:
    """A target as Snakemake looks for it: `./eval//x/` is `eval/x`, an absolute path stays."""
    return target.rstrip("/") if Path(target).is_absolute() else os.path.relpath(target)


def check_targets(
    targets: Iterable[str],
    known: Sequence[str],
    is_made: Callable[[str], bool],
    *,
    averaged: bool,
) -> None:
    """Every target is a rule or something that a rule makes.

    Args:
        targets: as typed.
        known: examples of what can be asked for, files and rules.
        is_made: whether a rule makes a path.
        averaged: whether checkpoints have a moving average (`train.ema`).

    Raises:
        UserError: one line for each that is none of them, with the nearest that are.
    """
    wrong = []
    for target in targets:
        if _AVERAGED.match(spelled(target)) and not averaged:
            wrong.append(f"{target} needs the weights' moving average: set train.ema, such as 0.99")
        elif not (target in known or is_made(spelled(target))):
            wrong.append(_unknown(target, known, is_made))
    if wrong:
        raise UserError("\n".join(wrong))


def _unknown(target: str, known: Sequence[str], is_made: Callable[[str], bool]) -> str:
    here = os.path.relpath(target)
    if is_made(here):
        return f"{target} is no target: paths are relative to the working folder: {here}"
    inside = [name for name in known if name.startswith(f"{here}/")]
    close = inside[:_SHOWN] or difflib.get_close_matches(here, known, n=_SHOWN, cutoff=0.4)
    nearest = f"the nearest: {', '.join(close)}; " if close else ""
    return (
        f"{target} is no target: {nearest}README.md, Commands, lists all "
        "(<n> is a step of at least 1)"
    )


def check_finished(
    jobs: Iterable[Any],
    dependencies: Mapping[Any, Mapping[Any, Iterable[str]]],
    finished: Callable[[Any], bool],
    asked: Iterable[str] = (),
) -> None:
    """After a run: what was asked for and what its jobs made is there, and no job was left out.

    A file in between that nobody asked for may be gone: people delete weights that were exported.

    Args:
        jobs: of Snakemake's DAG, which stand for what was asked for.
        dependencies: job → the jobs whose files it reads.
        finished: whether a job ran.
        asked: the targets, as typed.

    Raises:
        UserError: a file is missing, or a job did not run although one before it did.
    """
    jobs = list(jobs)
    goals = [job for job in jobs if not job.output]  # rules that stand for their inputs
    wanted = {str(file) for job in goals for files in dependencies[job].values() for file in files}
    wanted |= {spelled(target) for target in asked}
    stale = [
        f"{output} is older than what it is made from"
        for job in jobs
        if not finished(job) and any(finished(before) for before in dependencies[job])
        for output in job.output
    ]
    gone = [
        f"{output} is missing"
        for job in jobs
        for output in job.output
        if (finished(job) or str(output) in wanted) and not Path(output).exists()
    ]
    if stale or gone:
        raise UserError(
            "; ".join([*gone, *stale][:_SHOWN]) + ": give the same command again; if it says "
            "that nothing is to be done, delete what it names first"
        )
