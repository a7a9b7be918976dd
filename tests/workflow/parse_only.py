"""Parse commands with their programs' own parsers, and run nothing of them.

    python parse_only.py < commands.json > faults.json

`commands.json` is a list of argument lists, `python` left out; the answer says of each what its
program said against it, "" for nothing.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn


class Parsed(BaseException):
    """The program has what it needs and would start now."""


def stop(*arguments: Any, **options: Any) -> NoReturn:
    """Parse as argparse does, and no more."""
    parse(*arguments, **options)
    raise Parsed


parse = argparse.ArgumentParser.parse_args


def _takes_none(program: Path) -> bool:
    """Whether a benchmark parses no arguments, so that it would start at once."""
    return program.parents[1].name == "bench" and "parse_args" not in program.read_text()


def fault(command: list[str]) -> str:
    """What a program says against its arguments."""
    option, program, *given = command
    if option != "-m":
        return "it is started by its file: its neighbours are imported by package"
    sys.argv = [program, *given]
    said = io.StringIO()
    try:
        spec = importlib.util.find_spec(program)
        if not given and spec and spec.origin and _takes_none(Path(spec.origin)):
            return ""
        with contextlib.redirect_stderr(said):
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except Parsed:
        return ""
    except (SystemExit, OSError, ImportError) as error:
        return f"{said.getvalue().strip()} {error!r}"
    return "it takes no arguments"


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign]
    print(json.dumps([fault(command) for command in json.load(sys.stdin)]))
