"""What a run is bound to: its settings, its data, and the content of files that settings name."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.records import digest_json, read_json, write_json
from gc25d.settings.contents import Contents
from gc25d.settings.rates import RATES

RUN_RECORD = Path("train/run.json")
"""What a run is bound to: its settings and the fingerprint of its data."""
_SETTINGS = Path("train/settings.json")
_BINDING = Path("train/binding.json")
_REMAINS = ("binding.json", "states", "aside", "placed.json", "history.jsonl", "step-*")
"""Below train/, what a run leaves, and no other than a run."""
CONTENTS = "contents"
"""Key of a step's settings that holds the digests of the files it reads (`settings.contents`)."""


def began_with() -> dict[str, Any] | None:
    """The settings that the run in this directory began with; None when there is none."""
    record = run_record()
    return record["settings"] if record else None


def run_record(asked: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """What the run in this directory is bound to, as `train/run.json` holds it; None for no run.

    Where that file is gone, the binding tells the same, together with the settings that it holds
    the digest of: those of the settings file, or `asked`.

    Raises:
        UserError: the file holds something else.
    """
    if not RUN_RECORD.exists():
        return _bound_before(asked)
    record = read_json(RUN_RECORD)
    if not (isinstance(record, dict) and isinstance(record.get("settings"), dict)) or not (
        {"dataset", "data_fingerprint"} <= record.keys()
    ):
        raise UserError(
            f"{RUN_RECORD}: is no record of what this run is bound to (expected dataset, "
            "data_fingerprint and settings): put it back from a copy, or delete it to have it "
            f"restored from {_BINDING}"
        )
    return record


def _bound_before(asked: Mapping[str, Any] | None) -> dict[str, Any] | None:
    binding = read_json(_BINDING) if _BINDING.exists() else None
    if not isinstance(binding, dict):
        return None
    held = read_json(_SETTINGS) if _SETTINGS.exists() else None
    return next(
        (
            {
                "dataset": binding.get("dataset"),
                "data_fingerprint": binding.get("data_fingerprint"),
                "settings": settings,
            }
            for settings in (held, asked)
            if settings and digest_json(settings) == binding.get("settings_sha256")
        ),
        None,
    )


def _refuse_remains() -> None:
    """What is left of a run that nobody knows the settings of is bound to no others."""
    left = [
        path.name
        for name in _REMAINS
        for path in sorted(RUN_RECORD.parent.glob(name))
        if path.is_file() or (path.is_dir() and any(path.iterdir()))
    ]
    if left:
        raise UserError(
            f"{RUN_RECORD} is gone, and {RUN_RECORD.parent} holds what a run left "
            f"({', '.join(left[:4])}{', …' * (len(left) > 4)}), under other settings perhaps. "
            f"Nothing was started. Put {RUN_RECORD} back (with the settings that {_BINDING} is "
            f"of, it is restored), or set that run aside with {_restart()}"
        )


def check_binding(train: Mapping[str, Any], dataset: str) -> None:
    """Refuse settings and contents that differ from those the run in this directory is bound to.

    Contents are compared of those settings alone of which the run knows them.

    Raises:
        UserError: names each changed field or file, both values, and the ways out; or what a run
            left whose record is gone.
    """
    record = run_record(train)
    if record is None:
        _refuse_remains()
        return
    began = record["settings"]
    if began.get("version") != train.get("version"):
        raise UserError(
            f"training itself has changed (version {train.get('version')} of the step, the run was "
            f"started with {began.get('version')}). Nothing was started. Finish the run with the "
            f"gc25d that it was started with, or set it aside with {_restart()}"
        )
    bound = {"dataset": record["dataset"], **flatten(without_contents(began))}
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
        f"train elsewhere with --directory <new folder>, or set this run aside with {_restart()}"
    )


def _restart() -> str:
    return f"`python -m gc25d.steps.restart --directory {shlex.quote(str(Path.cwd()))}`"


def keep_record(train: Mapping[str, Any], warn: Callable[[str], None]) -> None:
    """Write `train/run.json` again where it is gone and known, before a job replaces the binding.

    Args:
        train: the settings asked for.
        warn: is told of it.
    """
    record = None if RUN_RECORD.exists() else run_record(train)
    if record:
        write_json(RUN_RECORD, record)
        warn(f"{RUN_RECORD} was gone: restored from {_BINDING}")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots: {"train": {"lr": 1}} → {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def fingerprint(path: Path, key: str) -> str | None:
    """The fingerprint under `key` of READY or a binding; None where none can be read.

    Asked by input functions, which must not raise: Snakemake takes a file whose job cannot be
    worked out for a source.
    """
    try:
        content = read_json(path)
    except (UserError, OSError):
        return None
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def is_bound_to(binding: Path, ready: Path) -> bool:
    """Whether `binding` (train/binding.json) holds the fingerprint that `ready` (READY) tells.

    A file that is not there, or that cannot be read and is to be made again, is bound to nothing:
    as `fingerprint`, this never raises.
    """
    bound = fingerprint(binding, "data_fingerprint")
    return bound is not None and bound == fingerprint(ready, "fingerprint")
