"""Which environment variables a package's Python sources read, by their syntax trees.

Run as a program it prints them as JSON: `python environment_scan.py <folder>...`.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# accelerate's parse_flag_from_env, get_int_from_env, …; os.getenv
READER = re.compile(r"getenv|\w+_from_env")
METHODS = ("get", "pop", "setdefault")


def texts(node: ast.AST, known: Mapping[str, list[str]]) -> list[str]:
    """The strings that an expression may be, as far as that stands in the sources."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return known.get(name, [])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return ["".join(pair) for pair in product(texts(left, known), texts(right, known))]
        case ast.JoinedStr(values=parts):
            return ["".join(row) for row in product(*(texts(part, known) for part in parts))]
        case ast.FormattedValue(value=value):
            return texts(value, known)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [text for item in items for text in texts(item, known)]
    return []


def constants(tree: ast.AST) -> dict[str, list[str]]:
    """Names that are set to strings, anywhere in a file."""
    known: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known.setdefault(name, []).extend(texts(value, {}))
            case ast.For(target=ast.Name(id=name), iter=value):
                known.setdefault(name, []).extend(texts(value, {}))
    return known


def of_environ(node: ast.AST) -> bool:
    """Whether an expression is `os.environ` or a name that usually is."""
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id in ("environ", "env")
    )


def keys(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions by which variables are looked up."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=value, slice=key) if of_environ(value):
                yield key
            case ast.Compare(left=key, comparators=[right]) if of_environ(right):
                yield key
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[key, *_]) if (
                of_environ(value) and name in METHODS
            ) or READER.fullmatch(name):
                yield key
            case ast.Call(func=ast.Name(id=name), args=[key, *_]) if READER.fullmatch(name):
                yield key


def variables(folders: list[Path]) -> set[str]:
    """All variables that the sources below some folders read."""
    trees = [
        ast.parse(text)
        for folder in folders
        for path in folder.rglob("*.py")
        if re.search("environ|getenv|_env|[A-Z_]+ *= *['\"][A-Z_]+['\"]", text := path.read_text())
    ]
    shared: dict[str, list[str]] = {}
    for tree in trees:
        for name, values in constants(tree).items():
            if name.isupper():
                shared.setdefault(name, []).extend(values)
    return {
        text
        for tree in trees
        for known in [{**shared, **constants(tree)}]
        for key in keys(tree)
        for text in texts(key, known)
        if NAME.fullmatch(text)
    }


if __name__ == "__main__":
    json.dump(sorted(variables([Path(folder) for folder in sys.argv[1:]])), sys.stdout)
