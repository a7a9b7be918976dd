"""Which modules of this package a module imports, found in their text: nothing is imported for it.

Rules ask at parse time for the digest of the code whose gradients the regression guards.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from gc25d.files import digest_bytes
from gc25d.records import digest_json

PACKAGE = Path(__file__).parents[1]
MEASURING = "gc25d.regression.gradnorm"
"""Builds every cell and measures it: with all that it imports, it decides the norms."""
# At any depth, since some imports stand in functions. Parsing would take ten times as long.
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(gc25d(?:\.[\w.]+)?)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)"
    rb"|import[ \t]+(gc25d(?:\.[\w.]+)?)\b)",
    re.MULTILINE,
)
_COMMENT = re.compile(rb"#[^\n]*")


def code_digest(package: Path = PACKAGE) -> str:
    """Digest of every module that the measurement of gradient norms imports, late ones included."""
    modules = reachable(MEASURING, package)
    return digest_json({name: digest_bytes(text) for name, text in sorted(modules.items())})


def reachable(root: str, package: Path = PACKAGE) -> dict[str, bytes]:
    """Name → text of the module `root` and of all modules of `package` that it leads to."""
    found: dict[str, bytes] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        path = _file(name, package)
        if name in found or path is None:
            continue
        found[name] = path.read_bytes()
        waiting += _packages_above(name)
        waiting += imported_names(found[name])
    return found


def imported_names(text: bytes) -> Iterator[str]:
    """What a module's text imports of gc25d: modules, and members that may be modules."""
    for module, members, plain in _IMPORT.findall(text):
        name = (module or plain).decode()
        yield name
        for member in _COMMENT.sub(b"", members).strip(b"()").split(b","):
            if words := member.split():
                yield f"{name}.{words[0].decode()}"


def _file(name: str, package: Path) -> Path | None:
    """Where a module's text lies; None for a name that is no module."""
    inside = package.joinpath(*name.split(".")[1:])
    candidates = (inside / "__init__.py", inside.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def _packages_above(name: str) -> list[str]:
    """`a.b.c` → `a`, `a.b`: importing a module runs the packages that hold it."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]
