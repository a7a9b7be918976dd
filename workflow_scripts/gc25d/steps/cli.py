"""What every step shares: logging to the terminal and a file, and errors as one line."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from gc25d.errors import UserError


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, with `--log`."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument("--log", type=Path, help="also write the log to this file")
    return made


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run a step; a `UserError` ends it with one line and status 1."""
    configure_logging(arguments.log)
    try:
        main(arguments)
    except UserError as error:
        logging.getLogger("gc25d").error("%s", error)
        sys.exit(1)


def configure_logging(log: Path | None) -> None:
    """Everything goes to `log`, warnings and errors to the terminal too."""
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.WARNING if log else logging.INFO)
    terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    handlers: list[logging.Handler] = [terminal]
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(log, mode="w", encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handlers.append(file)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
