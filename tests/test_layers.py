"""Imports run one way, rules import nothing that imports torch, and README's map is the tree."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workflow_scripts/gc25d"
BASE = (
    "errors",
    "strict_json",
    "full_disk",
    "files",
    "records",
    "locks",
    "digest_cache",
    "finite",
    "shapes",
    "tensors",
    "environment",
    "gpus",
    "devices",
)
# Each layer may import itself and those below it.
LAYERS = (
    BASE,
    ("settings",),
    ("workflow",),
    ("geometry",),
    ("capture",),
    ("prep",),
    ("dataset",),
    ("model",),
    ("sampling",),
    ("methods",),
    ("train", "evaluate", "regression", "export"),
    ("steps",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
NO_TORCH = tuple(sorted({*BASE} - {"finite", "shapes", "tensors", "devices"}))
MODULES = {
    ".".join(("gc25d", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in PACKAGE.rglob("*.py")
    if path != PACKAGE / "__init__.py"
}
"""A room's own module is called `<room>.__init__`."""


def imports(path: Path) -> Iterator[str]:
    """The package's modules that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            named = (f"{node.module}.{alias.name}" for alias in node.names)
            for name in (name if name in MODULES else node.module for name in named):
                yield name if name in MODULES else f"{name}.__init__"
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


EDGES = [
    (name, other)
    for name, path in MODULES.items()
    for other in sorted(set(imports(path)))
    if other in MODULES
]


def layer(name: str) -> str:
    return name.split(".")[1]


def room(name: str) -> str:
    """The folder of a module, dotted."""
    return name.rpartition(".")[0]


def test_every_module_has_a_layer() -> None:
    assert {layer(name) for name in MODULES} == set(RANK)


def test_imports_run_one_way() -> None:
    assert len(EDGES) > len(MODULES)  # they were found at all
    wrong = [f"{a} imports {b}" for a, b in EDGES if RANK[layer(b)] > RANK[layer(a)]]
    assert wrong == []


def test_no_two_rooms_import_each_other() -> None:
    """A room inside another shares that one's subject: it counts as a part of it."""
    reasons = defaultdict(list)
    for a, b in EDGES:
        one, other = f"{room(a)}.", f"{room(b)}."
        if not one.startswith(other) and not other.startswith(one):
            reasons[one, other].append(f"{a} imports {b}")
    wrong = [text for (one, other), text in reasons.items() if (other, one) in reasons]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    above = defaultdict(set)
    for a, b in EDGES:
        above[b].add(a)
    waiting = Counter(a for a, _ in EDGES)
    free = [name for name in MODULES if not waiting[name]]
    while free:
        for user in above[free.pop()]:
            waiting[user] -= 1
            if not waiting[user]:
                free.append(user)
    assert [name for name, count in waiting.items() if count] == []


def test_rooms_are_small() -> None:
    crowds = defaultdict(list)
    for name in MODULES:
        if not name.endswith("__init__"):
            crowds[room(name)].append(name)
    del crowds["gc25d.steps"]  # a program for each rule
    assert {place: len(names) for place, names in crowds.items() if len(names) > 13} == {}


def test_the_readme_draws_the_tree() -> None:
    drawn = re.search(
        r"^workflow_scripts/gc25d/.*\n((?: .*\n)+)", (ROOT / "README.md").read_text(), re.M
    )
    assert drawn
    entries: dict[str, set[str]] = {}
    base: set[str] = set()
    for line in drawn[1].splitlines():
        first = re.match(r"  ([a-z_]+)/", line)
        if first:
            entries[first[1]] = set()
        inner = set(re.findall(r"(?<![\w/])([a-z_]+)/", line)) - {first[1] if first else ""}
        if entries:
            entries[list(entries)[-1]] |= inner
        else:
            base |= set(re.split(r" · ", re.split(r"   +", line.strip())[0]))
    folders = {path for path in PACKAGE.rglob("*") if (path / "__init__.py").exists()}
    assert base == set(BASE)
    assert entries == {
        path.name: {inner.name for inner in folders if inner.parent == path}
        for path in folders
        if path.parent == PACKAGE
    }
    ranks = [RANK[name] for name in entries]
    assert ranks == sorted(ranks)


def test_rules_reach_only_modules_without_torch() -> None:
    modules = [name for name in MODULES if not name.endswith("__init__")]
    rooms = [name for name in modules if layer(name) in ("settings", "workflow")]
    names = ", ".join([*(f"gc25d.{name}" for name in NO_TORCH), *rooms])
    code = f"import sys, {names}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    used = {
        line
        for path in [*(ROOT / "rules").glob("*.smk"), ROOT / "Snakefile"]
        for line in path.read_text().splitlines()
        if line.startswith(("from gc25d", "import gc25d"))
    }
    assert len(used) > 5
    allowed = (
        r"from gc25d(\.(settings|workflow)(\.\w+)?)? import .*|from gc25d.errors import UserError"
    )
    assert [line for line in sorted(used) if not re.fullmatch(allowed, line)] == []
    bare = {line for line in used if line.startswith("from gc25d import")}
    assert bare == {"from gc25d import digest_cache"}
