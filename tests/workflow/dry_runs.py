"""Run commands of Snakemake that start no job, each in a process of its own, two at a time.

    python dry_runs.py <folder> < commands.json

`commands.json` is a list of argument lists, `snakemake` left out. Each is run in the current folder
with what it says in `<folder>/<its number>`; the last line printed is the list of statuses.
Snakemake is imported once, which takes most of a dry run's time.
"""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import snakemake.api
import snakemake.cli
import snakemake.workflow

AT_ONCE = 2


def run(words: list[str], output: Path) -> NoReturn:
    """Become Snakemake; ends this process."""
    sys.argv = ["snakemake", *words]
    said = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    status = 1
    try:
        snakemake.cli.main(words)
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        for file in (sys.stdout, sys.stderr):
            file.flush()
        os._exit(status)


def main(folder: Path, commands: list[list[str]]) -> list[int]:
    """Status of each command."""
    statuses: dict[int, int] = {}
    processes: dict[int, int] = {}
    for number, words in enumerate(commands):
        if len(processes) - len(statuses) == AT_ONCE:
            ended, status = os.wait()
            statuses[ended] = status
        if not (process := os.fork()):
            run(words, folder / str(number))
        processes[number] = process
    while len(statuses) < len(processes):
        ended, status = os.wait()
        statuses[ended] = status
    return [os.waitstatus_to_exitcode(statuses[processes[n]]) for n in range(len(commands))]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.load(sys.stdin))))
