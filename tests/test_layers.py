"""Imports run one way, and rules import nothing that imports torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "workflow_scripts/gc25d"
# Each layer may import itself and those below it.
LAYERS = (
    (
        "errors",
        "environment",
        "cells",
        "config_files",
        "finite",
        "shapes",
        "strict_json",
        "settings",
        "settings_base",
        "settings_training",
        "full_disk",
        "locks",
        "records",
        "tensors",
        "gpus",
        "devices_claim",
        "step_settings",
        "processes",
        "rates",
        "imported_code",
        "captures_check",
        "digest_cache",
        "contents",
        "binding",
        "plan",
        "settings_docs",
        "workflow",
    ),
    ("geometry",),
    ("capture",),
    ("prep",),
    ("dataset",),
    ("model",),
    ("methods",),
    ("train", "evaluate", "regression", "export"),
    ("steps",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
NO_TORCH = tuple(sorted({*LAYERS[0]} - {"finite", "shapes", "tensors", "devices_claim"}))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "gc25d":
                yield from (f"gc25d.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def layer(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def test_every_module_has_a_layer() -> None:
    modules = {layer(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert modules == set(RANK)


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in PACKAGE.rglob("*.py")
        if layer(path) != "__init__"
        for name in imports(path)
        if name.startswith("gc25d.")
        and name.split(".")[1] in RANK
        and RANK[name.split(".")[1]] > RANK[layer(path)]
    ]
    assert wrong == []


def test_rules_reach_only_modules_without_torch() -> None:
    rooms = [f"workflow.{path.stem}" for path in (PACKAGE / "workflow").glob("[a-z]*.py")]
    names = ", ".join(f"gc25d.{name}" for name in (*NO_TORCH, *rooms))
    code = f"import sys, {names}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    rules = PACKAGE.parents[1] / "rules"
    used = {
        line
        for path in [*rules.glob("*.smk"), PACKAGE.parents[1] / "Snakefile"]
        for line in path.read_text().splitlines()
        if line.startswith(("from gc25d", "import gc25d"))
    }
    allowed = {
        "from gc25d import config_files, digest_cache, plan",
        "from gc25d.contents import cache_file, named_contents",
        "from gc25d.errors import UserError",
        "from gc25d.workflow import data_lock, profile, targets",
        "from gc25d.workflow import (",
    }
    assert used == allowed
