"""What is in the files that settings name, as the steps' settings hold it.

Found contents stand beside the settings under `contents`. What was made before they were kept, or
whose files are gone since, is taken as it is: nothing is made again for that.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gc25d.errors import UserError
from gc25d.records import read_json
from gc25d.settings.contents import Contents, named_paths
from gc25d.settings.steps import READ_BY
from gc25d.settings.tree import Settings
from gc25d.workflow.binding import CONTENTS, RUN_RECORD, began_with, with_contents, without_contents
from gc25d.workflow.runs import settings_paths

_NEEDED = ("prep", "text", "eval", "train")  # the regression is measured on request alone
StepContents: TypeAlias = dict[str, dict[str, Any]]
"""Name of a step → what its settings file holds."""


def settled(settings: Settings, steps: StepContents, named: Contents) -> StepContents:
    """The steps' settings with the contents that they are to hold.

    Args:
        settings: of the whole pipeline.
        steps: without contents.
        named: setting in use → what is there now.

    Raises:
        UserError: a step would read files that are not there; names the setting.
    """
    files = settings_paths(settings)
    made = {
        name: _of_step(steps[name], _held(files[name]), _of(name, named))
        for name in ("prep", "text", "eval", "regression")
    }
    data = made["prep"].get(CONTENTS, {}) | made["text"].get(CONTENTS, {})
    made["train"] = _of_run(steps["train"], _of("train", named) | data)
    for name in _NEEDED:
        _refuse_missing(settings, made[name].get(CONTENTS, {}))
    found = {name: with_contents(step, _there(step)) for name, step in made.items()}
    return {**steps, **found}


def _of(step: str, named: Contents) -> Contents:
    return {setting: named[setting] for setting in READ_BY[step] if setting in named}


def _held(path: Path) -> dict[str, Any]:
    held = read_json(path) if path.exists() else {}
    return held if isinstance(held, dict) else {}


def _of_step(step: dict[str, Any], held: dict[str, Any], found: Contents) -> dict[str, Any]:
    """With what is found; while the settings are as held, what is held stands for what is gone."""
    if without_contents(held) != step:
        return with_contents(step, found)
    if CONTENTS not in held:
        return step
    known = held[CONTENTS]
    return with_contents(
        step, {name: files or known.get(name, {}) for name, files in found.items()}
    )


def _of_run(step: dict[str, Any], found: Contents) -> dict[str, Any]:
    """With what is found; for a run that has begun only of what it knows, which stands for gone."""
    began = began_with()
    if began is None:
        return with_contents(step, found)
    known = began.get(CONTENTS, {})
    kept = {name: files or known[name] for name, files in found.items() if name in known}
    return with_contents(step, kept)


def _there(step: Mapping[str, Any]) -> Contents:
    return {name: files for name, files in step.get(CONTENTS, {}).items() if files}


def _refuse_missing(settings: Settings, contents: Contents) -> None:
    paths = named_paths(settings)
    for setting, files in contents.items():
        if not files:
            raise UserError(
                f"{setting} {paths[setting]}: no weights there: mount or restore them, or set "
                f"{setting} to where they lie"
            )


def unknown_contents(settings: Settings, steps: StepContents) -> str:
    """A line that says what was made before contents were kept; "" where nothing was.

    Args:
        settings: of the whole pipeline.
        steps: what their settings files should hold.
    """
    files = {**settings_paths(settings), "train": RUN_RECORD}
    used = named_paths(settings)
    unknown = [
        f"{files[name]} ({setting})"
        for name in _NEEDED
        for setting in READ_BY[name]
        if setting in used and setting not in steps[name].get(CONTENTS, {})
    ]
    return (
        f"begun before the content of files was kept: {', '.join(unknown)}; it goes on, and a file "
        "replaced since then is not noticed"
        if unknown
        else ""
    )
