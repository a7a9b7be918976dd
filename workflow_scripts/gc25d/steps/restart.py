"""Set the run in this directory aside, so that the next `snakemake` starts a new one.

Moves train/, exports/, verify/, eval/ and figures/ to previous/<time>/; captures and data stay.
Refuses while a trainer works on the run.

    python -m gc25d.steps.restart [--directory <folder of the run>]
"""

import argparse
import datetime
import logging
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import locked
from gc25d.steps import cli

MOVED = ("train", "exports", "verify", "eval", "figures")
logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Move the run's folders; the lock makes sure that nobody writes there."""
    root: Path = arguments.directory
    if not (root / "train/run.json").exists():
        raise UserError(f"{root}: no run here (train/run.json not found): nothing to set aside")
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = root / "previous" / stamp
    with locked(root / "train/lock", wait_s=0.0, held="a trainer works on this run"):
        aside.mkdir(parents=True)
        for name in MOVED:
            if (root / name).exists():
                (root / name).rename(aside / name)
    logger.info("the run now lies in %s", aside)


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    parser.add_argument("--directory", type=Path, default=Path())
    cli.run(main, parser.parse_args())
