"""The regression's code digest covers what the cells import, no more and no less."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gc25d.workflow.imported_code import MEASURING, PACKAGE, code_digest, imported_names, reachable

MEASURE_ALL = """
import sys
import torch
from gc25d.regression.cells import CELLS
from gc25d.regression.gradnorm import measure_once
for cell in CELLS:
    measure_once(cell, torch.device("cpu"))
print(*sorted(name for name in sys.modules if name.split(".")[0] == "gc25d"))
"""


def test_every_module_that_measuring_all_cells_loads_is_covered() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_ALL], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"gc25d.dataset.draws", "gc25d.prep.parts", "gc25d.model.wan.transformer"} <= loaded
    assert loaded <= set(reachable(MEASURING))


def test_imports_found_in_the_text_are_those_of_the_syntax_tree() -> None:
    """In every module of the package, at any depth."""
    for path in sorted(PACKAGE.rglob("*.py")):
        expected = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                expected |= {a.name for a in node.names if a.name.split(".")[0] == "gc25d"}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: a relative import"
                module = str(node.module)
                if module.split(".")[0] == "gc25d":
                    expected |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        assert set(imported_names(path.read_bytes())) == expected, path


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "gc25d"
    return Path(shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, True) for name in ("dataset/draws.py", "prep/parts.py", "geometry/capsules.py")),
        *(
            (name, True)
            for name in ("tensors.py", "model/wan/transformer.py", "model/gpu/kernels.py")
        ),
        *((name, True) for name in ("methods/kd.py", "regression/fixtures.py", "__init__.py")),
        *(
            (name, False)
            for name in ("sampling/sample.py", "capture/doom/capture.py", "workflow/runs.py")
        ),
        *(
            (name, False)
            for name in ("train/loop.py", "prep/reading/readers.py", "export/write.py")
        ),
    ],
)
def test_an_edit_counts_where_the_module_is_imported(copy: Path, name: str, counts: bool) -> None:
    before = code_digest(copy)
    text = (copy / name).read_bytes()
    (copy / name).write_bytes(text + b"# an edit\n")
    after = code_digest(copy)
    (copy / name).write_bytes(text)
    assert (after != before) is counts
    assert code_digest(copy) == before == code_digest()


def test_ways_to_write_an_import() -> None:
    text = b"""
from gc25d.a import b, c as d  # from gc25d.no import comment
from gc25d.e import (
    f,  # first, not second
    g as h,
)
import gc25d.i
import gc25dx
def late():
    from gc25d import j
x = "from gc25d.k import l"
"""
    assert set(imported_names(text)) == {
        *("gc25d.a", "gc25d.a.b", "gc25d.a.c", "gc25d.e", "gc25d.e.f", "gc25d.e.g"),
        *("gc25d.i", "gc25d", "gc25d.j"),
    }
