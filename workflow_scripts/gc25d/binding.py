"""What a run is bound to: its settings, its data, and the content of files that settings name.

A step's settings file holds under `contents` the digests of what its paths lead to: those count,
the paths do not. Runs and data that were begun without them are taken as they are found.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.records import atomic_path, digest_json, holds_json, read_json, to_json, write_json

RUN_RECORD = Path("train/run.json")
"""What a run is bound to: its settings and the fingerprint of its data."""
CONTENTS = "contents"
"""Key of a settings file: dotted key of a path in that file → digest of what it leads to."""


def check_binding(train: dict[str, Any], dataset: str) -> None:
    """Refuse settings that differ from those the run in this directory is bound to.

    Raises:
        UserError: names each changed field, both values, and the ways out.
    """
    if not RUN_RECORD.exists():
        return
    record = read_json(RUN_RECORD)
    began, movable = record["settings"], CONTENTS in record["settings"]
    known = began.get(CONTENTS) or record.get(CONTENTS) or {}
    found = train.get(CONTENTS, {}) if known else {}
    bound = {"dataset": _plain(record["dataset"]), **_values(began, known, movable=movable)}
    asked = {"dataset": _plain(dataset), **_values(train, found, movable=movable)}
    changed = [
        f"{key} is {asked.get(key, nothing)[1]}, the run was started with "
        f"{bound.get(key, nothing)[1]}"
        for nothing in (_plain(None),)
        for key in sorted(bound.keys() | asked.keys())
        if bound.get(key, nothing)[0] != asked.get(key, nothing)[0]
    ]
    if changed:
        raise UserError(refusal(changed))


def _values(
    settings: Mapping[str, Any], contents: Mapping[str, str], *, movable: bool
) -> dict[str, tuple[Any, str]]:
    """Dotted key → what is compared, and how a message shows it.

    Of a path whose content is known that content is compared, and the path too unless `movable`.
    """
    values = {}
    for key, value in flatten(_without_contents(settings)).items():
        digest = contents.get(key)
        values[key] = _plain(value)
        if digest is not None:
            compared = [digest] if movable else [digest, value]
            values[key] = compared, f"{value!r} (content {digest[:12]})"
    return values


def _plain(value: Any) -> tuple[Any, str]:
    return value, repr(value)


def _without_contents(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != CONTENTS}


def refusal(changed: list[str]) -> str:
    """The message that refuses to mix two results in one run."""
    return (
        "; ".join(changed) + ". Nothing was started. Put the old value back, or train elsewhere "
        "with --directory <new folder>, or set this run aside with `python -m gc25d.steps.restart "
        f"--directory {shlex.quote(str(Path.cwd()))}`"
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


def settings_digest(settings: Mapping[str, Any], *, by_content: bool = True) -> str:
    """Digest of a step's settings, in which contents stand for the paths that lead to them.

    Args:
        settings: content of a settings file.
        by_content: False takes the paths instead, as for a run that began without contents.
    """
    plain, contents = _without_contents(settings), settings.get(CONTENTS)
    return digest_json({**flatten(plain), **contents} if contents and by_content else plain)


def fits_binding(settings: Mapping[str, Any], settings_sha256: str) -> bool:
    """Whether a binding was made from these settings, by their contents or by their paths."""
    return settings_sha256 in (
        settings_digest(settings, by_content=True),
        settings_digest(settings, by_content=False),
    )


def holds_result(path: Path, value: Mapping[str, Any]) -> bool:
    """Whether a settings file stands for the same result as `value`.

    The text may differ in paths that lead to equal contents, and in contents that it lacks because
    it was written before they were known.
    """
    if holds_json(path, value):
        return True
    if not path.exists() or not value.get(CONTENTS):
        return False
    held = read_json(path)
    if not isinstance(held, dict):
        return False
    return settings_digest(held) == settings_digest(value, by_content=CONTENTS in held)


def bring_up_to_date(files: Mapping[str, Path], values: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what alters no result: paths that moved, contents that were not known.

    Settings files keep their times, so that nothing is made again; those of data that may only be
    read stay as they are. The run's record gets the contents that its first start since then finds.

    Args:
        files: step → its settings file.
        values: step → content of that file, `train` among them; `holds_result` is true of each.
    """
    for name, value in values.items():
        path = files[name]
        if not holds_json(path, value) and os.access(path.parent, os.W_OK):
            _write_keeping_time(path, value)
    contents = values["train"].get(CONTENTS)
    if contents and RUN_RECORD.exists():
        record = read_json(RUN_RECORD)
        if CONTENTS not in record and CONTENTS not in record["settings"]:
            write_json(RUN_RECORD, {**record, CONTENTS: contents})


def _write_keeping_time(path: Path, value: Mapping[str, Any]) -> None:
    before = path.stat()
    with atomic_path(path) as temporary:
        temporary.write_text(to_json(value) + "\n", encoding="utf-8")
        os.utime(temporary, ns=(before.st_atime_ns, before.st_mtime_ns))
