"""Set the run in this directory aside, so that the next `snakemake` starts a new one.

Moves train/, exports/, verify/, eval/ and figures/ to previous/<time>/; captures and data stay.
What is left of a run whose outputs were deleted is moved alike. Of a folder that is a link the link
moves, and what it leads to stays where it is. Refuses while a trainer works on the run.

    python -m gc25d.steps.restart [--directory <folder of the run>]
"""

import argparse
import datetime
import logging
import os
from pathlib import Path

from gc25d.errors import UserError
from gc25d.locks import locked
from gc25d.steps import cli

MOVED = ("train", "exports", "verify", "eval", "figures")
OF_EVERY_PARSE = ("settings.json", "lock")
"""What lies below train/ before any run: a dry run writes it."""
logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Move the run's folders; the lock makes sure that nobody writes there."""
    root: Path = arguments.directory
    train = root / "train"
    if train.is_symlink() and not train.exists():
        raise UserError(
            f"{train}: is a link to {train.readlink()}, which is not there: mount that disk, or "
            "remove the link"
        )
    left = [path.name for path in train.iterdir()] if train.exists() else []
    if not set(left) - {*OF_EVERY_PARSE}:
        raise UserError(f"{root}: no run here (train/ holds none): nothing to set aside")
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = root / "previous" / stamp
    with locked(train / "lock", wait_s=0.0, held="a trainer works on this run"):
        aside.mkdir(parents=True)
        for name in MOVED:
            if os.path.lexists(root / name):
                move(root / name, aside / name)
    logger.info("the run now lies in %s", aside)


def move(path: Path, aside: Path) -> None:
    """Rename a folder; links that lead out of it, or itself one, still lead to where they led."""
    if path.is_symlink():
        logger.warning(
            "%s is a link to %s: what is there stays there. The new run gets a plain folder, "
            "unless you make a new link first",
            *(path, path.readlink()),
        )
    for link in [path] if path.is_symlink() else path.rglob("*"):
        if link.is_symlink() and not link.readlink().is_absolute():
            target = Path(os.path.normpath(link.parent.absolute() / link.readlink()))
            if not target.is_relative_to(path.absolute()):
                make_absolute(link, target)
    path.rename(aside)


def make_absolute(link: Path, target: Path) -> None:
    """Let a relative link say where it leads from anywhere."""
    replacing = link.with_name(f".{link.name}.tmp")
    replacing.unlink(missing_ok=True)
    replacing.symlink_to(target)
    replacing.replace(link)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--directory", type=Path, default=Path())
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
