"""What every step shares: logging to the terminal and a file, and errors as one line."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from gc25d.errors import UserError

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


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run a step; a `UserError` ends it with one line, any other with its traceback; status 1."""
    configure_logging(arguments.log)
    try:
        main(arguments)
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


def configure_logging(log: Path | None) -> None:
    """Log to the terminal, or to `log` with the warnings on the terminal too.

    Errors go to one place: Snakemake shows the log of a job that failed.
    """
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handlers: list[logging.Handler] = [terminal]
    if log:
        terminal.addFilter(lambda record: record.levelno == logging.WARNING)
        log.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(log, mode="w", encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(file)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
