"""What every step shares: logging to the terminal and a file, and errors as one line."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from gc25d import steps
from gc25d.errors import UserError
from gc25d.train.signals import EXIT_STATUS, Preempted

logger = logging.getLogger("gc25d")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, with `--log`."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument(
        "--log", type=Path, help="write the log and errors here; only warnings go to the terminal"
    )
    return made


def run(
    main: Callable[[argparse.Namespace], None],
    arguments: argparse.Namespace,
    *,
    rank: int | None = None,
    append: bool = False,
) -> None:
    """Run a step; a `UserError` ends it with one line, any other with its traceback; status 1.

    A trainer that stopped on request ends with a status of its own.

    Args:
        main: of the step.
        arguments: for it, `log` among them.
        rank: number of this process where several write to one log, which its starter has begun.
        append: whether the log was begun by another process.
    """
    configure_logging(arguments.log, rank, append=append or rank is not None)
    if steps.IGNORED:
        logger.info("of the environment, ignored: %s", ", ".join(steps.IGNORED))
    try:
        main(arguments)
    except Preempted as stop:
        logger.info("%s", stop)
        sys.exit(EXIT_STATUS)
    except UserError as error:
        logger.error("%s", error)
        sys.exit(1)
    except OSError as error:
        logger.error(
            "%s: %s: see that it exists, is yours, and the disk is not full", *_place(error)
        )
        sys.exit(1)
    except Exception:
        logger.exception("this is a fault of the program, not of its input")
        sys.exit(1)


def _place(error: OSError) -> tuple[str, str]:
    """Which file, and what the system says."""
    return str(error.filename or "a file"), error.strerror or str(error)


def configure_logging(log: Path | None, rank: int | None = None, *, append: bool = False) -> None:
    """Log to the terminal, or to `log` with the warnings on the terminal too.

    Errors go to one place: Snakemake shows the log of a job that failed. Of several processes all
    but the first say only what is wrong, and who they are.
    """
    who = f"process {rank}: " if rank else ""
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter(f"%(levelname)s: {who}%(message)s"))
    handlers: list[logging.Handler] = [terminal]
    if log:
        terminal.addFilter(lambda record: record.levelno == logging.WARNING)
        log.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(log, mode="a" if append else "w", encoding="utf-8")
        file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {who}%(message)s"))
        handlers.append(file)
    level = logging.WARNING if rank else logging.INFO
    logging.basicConfig(level=level, handlers=handlers, force=True)
