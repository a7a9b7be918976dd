"""Parse commands with their programs' own parsers, and run nothing of them.

    python parse_only.py < commands.json > faults.json

`commands.json` is a list of argument lists, `python` left out; the answer says of each what its
program said against it, "" for nothing.
"""

import argparse
import contextlib
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


def fault(command: list[str]) -> str:
    """What a program says against its arguments."""
    module = command[0] == "-m"
    program, *given = command[module:]
    sys.argv = [program, *given]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            if module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            elif "parse_args" in Path(program).read_text():
                sys.path.insert(0, str(Path(program).parent))
                runpy.run_path(program, run_name="__main__")
            elif not given:
                return ""
    except Parsed:
        return ""
    except (SystemExit, OSError, ImportError) as error:
        return f"{said.getvalue().strip()} {error!r}"
    return "it takes no arguments"


if __name__ == "__main__":
    argparse.ArgumentParser.parse_args = stop  # type: ignore[method-assign]
    print(json.dumps([fault(command) for command in json.load(sys.stdin)]))
