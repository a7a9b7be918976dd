"""What every step shares: logging to the terminal and a file, and errors as one line.

Whatever ends a step is one line on the terminal. What nobody foresaw leaves its traceback in the
log, or on the terminal where a step writes no log. A closed terminal alone ends no step.
"""

import argparse
import contextlib
import copy
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gc25d import steps
from gc25d.errors import UserError
from gc25d.full_disk import full_disk, is_disk_full
from gc25d.train.processes.signals import EXIT_STATUS, Preempted

logger = logging.getLogger(__name__)

NOT_LOST = "Nothing is lost: results are renamed into place only when they are whole."


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, with `--log`."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument(
        "--log",
        type=Path,
        help="write the log and tracebacks here; only warnings and errors go to the terminal",
    )
    return made


def run(
    main: Callable[[argparse.Namespace], None],
    arguments: argparse.Namespace,
    *,
    rank: int | None = None,
    append: bool = False,
) -> None:
    """Run a step; what ends it is one line on the terminal, and status 1.

    A trainer that stopped on request ends with a status of its own.

    Args:
        main: of the step.
        arguments: for it, `log` among them.
        rank: number of this process where several write to one log, which its starter has begun.
        append: whether the log was begun by another process.
    """
    with lasting_output():
        _run(main, arguments, rank, append)


def _run(
    main: Callable[[argparse.Namespace], None],
    arguments: argparse.Namespace,
    rank: int | None,
    append: bool,
) -> None:
    try:
        configure_logging(arguments.log, rank, append=append or rank is not None)
        if steps.IGNORED:
            logger.info("of the environment, ignored: %s", ", ".join(steps.IGNORED))
        main(arguments)
    except Preempted as stop:
        logger.info("%s", stop)
        sys.exit(EXIT_STATUS)
    except UserError as error:
        logger.error("%s", error)
        sys.exit(1)
    except Exception as error:
        traceback = arguments.log is not None or not isinstance(error, OSError)
        logger.error("%s", explained(error, arguments), exc_info=traceback)
        sys.exit(1)


def explained(error: Exception, arguments: argparse.Namespace) -> str:
    """One line for an error that nobody foresaw."""
    if is_disk_full(error):
        return str(full_disk(error, folders_of(arguments), NOT_LOST))
    traceback = f": its traceback is in {arguments.log}" if arguments.log else ""
    if isinstance(error, OSError):
        place, said = error.filename or "a file", error.strerror or str(error)
        return f"{place}: {said}: see that it exists and is yours{traceback}"
    said = " ".join(str(error).split())
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"this is a fault of the program, not of its input: {what}{traceback}"


_LONGEST = 300
"""Characters of an error's own words on the terminal; all of them are in the log."""


def folders_of(arguments: argparse.Namespace) -> list[Path]:
    """Where a step may write: here, and beside everything that it was given."""
    given = (v for value in vars(arguments).values() for v in _listed(value))
    return [Path(), *dict.fromkeys(path.parent for path in given if isinstance(path, Path))]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let nothing that prints, libraries and progress bars included, fail for want of a reader."""
    with (
        contextlib.redirect_stdout(sys.stdout and LastingStream(sys.stdout)),
        contextlib.redirect_stderr(sys.stderr and LastingStream(sys.stderr)),
    ):
        yield


class LastingStream:
    """Standard output or error; once its terminal or pipe is closed, writes go nowhere."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        try:
            self._stream.write(text)
        except OSError:
            self._drop()
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Let the system take what is still buffered: Python ends with an error otherwise."""
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
            self._stream.flush()


class OneLine(logging.Formatter):
    """Leaves tracebacks to the log."""

    def format(self, record: logging.LogRecord) -> str:
        """The message alone."""
        alone = copy.copy(record)
        alone.exc_info = alone.exc_text = alone.stack_info = None
        return super().format(alone)


class LogFile(logging.FileHandler):
    """A log whose own errors are one line on the terminal, once: the step goes on without it."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell what went wrong with writing a line."""
        if not self.failed:
            self.failed = True
            why = sys.exc_info()[1]
            print(f"WARNING: this log misses lines: {self.baseFilename}: {why}", file=sys.stderr)


def configure_logging(log: Path | None, rank: int | None = None, *, append: bool = False) -> None:
    """Log to the terminal, or to `log` with warnings and errors on the terminal too.

    Of several processes all but the first say only what is wrong, and who they are.
    """
    who = f"process {rank}: " if rank else ""
    words = f"%(levelname)s: {who}%(message)s"
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(OneLine(words) if log else logging.Formatter(words))
    level = logging.WARNING if rank else logging.INFO
    logging.basicConfig(level=level, handlers=[terminal], force=True)
    if log:
        terminal.setLevel(logging.WARNING)
        log.parent.mkdir(parents=True, exist_ok=True)
        file = LogFile(log, mode="a" if append else "w", encoding="utf-8")
        file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {who}%(message)s"))
        logging.getLogger().addHandler(file)
