"""What YAML and JSON do to a configuration in silence, refused. Imports no torch.

Snakemake's loader keeps the last of two equal keys, so that a second `train:` section replaces the
first, and reads some texts as other numbers than a person does: 1:30 as 90, 0100 as 64, 1_000 as
1000. Both are gone once the file is loaded, so the files are read again here.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gc25d.errors import UserError
from gc25d.settings.base import DECIMAL

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def check_config(files: Iterable[str | os.PathLike[str]], arguments: Sequence[str] | None) -> None:
    """Refuse configuration files, and values of `--config`, that do not say what they seem to.

    Args:
        files: JSON or YAML, which Snakemake has loaded.
        arguments: `key=value`, as `--config` takes them.

    Raises:
        UserError: names the file, the line, and the key that stands twice or the odd number.
    """
    for path in dict.fromkeys(map(Path, files)):
        check_text(path.read_text(encoding="utf-8"), str(path))
    for argument in arguments or ():
        key, _, value = argument.partition("=")
        check_text(f"{key}: {value}", f"--config {argument}", yaml.BaseLoader)


def check_text(text: str, where: str, loader: Any = yaml.SafeLoader) -> None:
    """Check the text of one configuration; what is no YAML at all is left to Snakemake.

    `loader` has the rules of what is a number: `BaseLoader`, which reads `--config`, has none.

    Raises:
        UserError: as `check_config`; starts with `where`.
    """
    try:
        json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, where))
    except ValueError:
        pass
    else:
        return
    try:
        root = yaml.compose(text, loader)
    except yaml.YAMLError:
        return
    for node, path in _nodes(root, (), set()):
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, path, where)
        elif node.tag in _NUMBERS:
            _check_number(node, path, where)


def _once(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"{where}: {twice} stands twice, which loses one of them: join the two")
    return found


def _nodes(
    node: yaml.Node | None, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[yaml.Node, tuple[str, ...]]]:
    """Every node of a document once, with its keys; an anchor may lead back to where it stands."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    yield node, path
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _nodes(value, (*path, str(key.value)), seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _nodes(item, path, seen)


def _check_keys(node: yaml.MappingNode, path: tuple[str, ...], where: str) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in first:
            raise UserError(
                f"{where}, line {line}: {'.'.join((*path, name))} stands twice, first in line "
                f"{first[name]}, which loses one of them: join the two"
            )
        first[name] = line


def _check_number(node: yaml.Node, path: tuple[str, ...], where: str) -> None:
    text = str(node.value)
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits.startswith("0") and digits.isdigit()
    no_number = digits.lower() in (".inf", ".nan")  # the settings refuse these by their key
    if no_number or (DECIMAL.fullmatch(text) and not octal):
        return
    raise UserError(
        f"{where}, line {node.start_mark.line + 1}: {'.'.join(path)} is {text}, which YAML reads "
        f"as {yaml.safe_load(text)}: write it in decimals, or in quotes if it is a text"
    )
