"""The configuration, validated, with messages that name key, value and what is legal."""

import difflib
from typing import Any

from pydantic import BaseModel, ValidationError

from gc25d.errors import UserError
from gc25d.settings.processes import check_processes
from gc25d.settings.tree import Settings


def load_settings(config: dict[str, Any]) -> Settings:
    """Validate a configuration.

    Raises:
        UserError: one line per unknown or illegal value, with its key, the value and what is legal.
    """
    try:
        settings = Settings.model_validate(config)
    except ValidationError as error:
        lines = [_explain(dict(problem)) for problem in error.errors()]
        raise UserError("config: " + "\nconfig: ".join(lines)) from None
    check_processes(settings.train, settings.hardware)
    return settings


def _explain(problem: dict[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path) or "settings"
    if problem["type"] == "extra_forbidden":
        known = _keys_beside(path)
        close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        meant = f"did you mean {'.'.join([*path[:-1], close[0]])}?" if close else "remove it"
        return f"{key} is not a setting: {meant} (known here: {', '.join(known)})"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return "\nconfig: ".join(f"{key}: {fault}" for fault in message.splitlines())
    quoted = ": put it in quotes" if problem["type"] == "string_type" else ""
    return f"{key} is {problem['input']!r}: {message[0].lower()}{message[1:]}{quoted}"


def _keys_beside(path: list[str]) -> list[str]:
    """The known keys of the section in which `path` stands."""
    section: type[BaseModel] = Settings
    for part in path[:-1]:
        annotation = section.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        section = annotation
    return list(section.model_fields)
