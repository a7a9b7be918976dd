"""Every program of `gc25d.steps` parses its arguments and starts alike; a logger has one name."""

import ast
import re
from pathlib import Path

import pytest

from gc25d import steps

STEPS = Path(steps.__file__).parent
PROGRAMS = [path for path in sorted(STEPS.glob("*.py")) if "\ndef main(" in path.read_text()]
START = r'\n\n\nif __name__ == "__main__":\n    cli\.run\(main, parse_arguments\(\)(, .*)?\)\n$'


def test_programs_are_found() -> None:
    assert len(PROGRAMS) > 20
    others = {path.stem for path in STEPS.glob("*.py")} - {path.stem for path in PROGRAMS}
    assert others == {"__init__", "cli", "export_arguments", "train_arguments"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.stem))
def test_a_program_parses_its_arguments_in_one_function(path: Path) -> None:
    text = path.read_text()
    assert re.search(START, text)
    parsing = [
        function.name
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef) and "parse_args(" in ast.unparse(function)
    ]
    assert parsing == ["parse_arguments"]


def test_a_modules_logger_is_called_logger_and_named_after_the_module() -> None:
    kept = {
        (ast.unparse(node.targets[0]), ast.unparse(node.value))
        for path in STEPS.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and "getLogger(" in ast.unparse(node.value)
    }
    assert kept == {("logger", "logging.getLogger(__name__)")}
