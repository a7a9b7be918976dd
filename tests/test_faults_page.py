"""docs/faults.md names tests that there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    line
    for line in (ROOT / "docs/faults.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]


def named_tests(row: str) -> list[tuple[str, str]]:
    """(file, test) of a row; a test without a file is of the file before it."""
    found, file = [], ""
    for match in re.finditer(r"(tests/[\w/]+\.py)|::(test_\w+)", row):
        file = match[1] or file
        found.append((file, match[2] or ""))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:60])
def test_each_fault_has_tests_that_exist(row: str) -> None:
    assert row.count(" | ") == 2
    tests = named_tests(row.rsplit(" | ", 1)[1])
    for file, name in tests:
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
    assert tests or "docs/" in row, "no test and no page named"
