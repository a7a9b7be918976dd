"""What a run is bound to: its settings, its data, and the content of files that settings name."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gc25d.contents import Contents
from gc25d.errors import UserError
from gc25d.rates import RATES
from gc25d.records import read_json

RUN_RECORD = Path("train/run.json")
"""What a run is bound to: its settings and the fingerprint of its data."""
CONTENTS = "contents"
"""Key of a step's settings under which the contents stand that it reads (`gc25d.contents`)."""


def began_with() -> dict[str, Any] | None:
    """The settings that the run in this directory began with; None when there is none."""
    if not RUN_RECORD.exists():
        return None
    settings: dict[str, Any] = read_json(RUN_RECORD)["settings"]
    return settings


def check_binding(train: Mapping[str, Any], dataset: str) -> None:
    """Refuse settings and contents that differ from those the run in this directory is bound to.

    Contents are compared of those settings alone of which the run knows them.

    Raises:
        UserError: names each changed field or file, both values, and the ways out.
    """
    began = began_with()
    if began is None:
        return
    bound = {"dataset": read_json(RUN_RECORD)["dataset"], **flatten(without_contents(began))}
    asked = {"dataset": dataset, **flatten(without_contents(train))}
    changed = {
        key: f"{key} is {asked.get(key)!r}, the run was started with {bound.get(key)!r}"
        for key in sorted(bound.keys() | asked.keys())
        if bound.get(key) != asked.get(key)
    }
    for setting, held in began.get(CONTENTS, {}).items():
        if setting not in changed:
            found = train.get(CONTENTS, {}).get(setting, {})
            if found != held:
                changed[setting] = _other_files(setting, held, found)
    if changed:
        rates = changed.keys() <= {f"train.{name}" for name in RATES}
        raise UserError(refusal(list(changed.values()), rates=rates))


def _other_files(setting: str, held: Mapping[str, str], found: Mapping[str, str]) -> str:
    """A line that names the first file whose content is another."""
    names = sorted(name for name in held.keys() | found.keys() if held.get(name) != found.get(name))
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"{setting}: {names[0]}{more} is {_short(found.get(names[0]))}, "
        f"the run was started with {_short(held.get(names[0]))}"
    )


def _short(digest: str | None) -> str:
    return f"SHA-256 {digest[:12]}" if digest else "not there"


def without_contents(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A step's settings by themselves."""
    return {key: value for key, value in settings.items() if key != CONTENTS}


def with_contents(settings: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    """A step's settings with these contents in place of theirs, without the key for none."""
    kept = {CONTENTS: contents} if contents else {}
    return {**kept, **without_contents(settings)}


def refusal(changed: list[str], *, rates: bool = False) -> str:
    """The message that refuses to mix two results in one run; `rates`: they alone changed."""
    allow = "allow it with train.reset_lr_on_resume: true, or " if rates else ""
    return (
        f"{'; '.join(changed)}. Nothing was started. Put the old value or file back, or {allow}"
        "train elsewhere with --directory <new folder>, or set this run aside with "
        f"`python -m gc25d.steps.restart --directory {shlex.quote(str(Path.cwd()))}`"
    )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots: {"train": {"lr": 1}} → {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
