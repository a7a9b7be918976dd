"""The steps' settings files: what each should hold, and a copy of that to make it from.

A settings file is the output of the rule `write_settings`, so that nothing is written before a job
runs: a dry run, `--lint`, `--dag`, `--report` and a mistyped target leave the folder as it is.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gc25d.errors import UserError
from gc25d.records import holds_json, read_json, write_json
from gc25d.settings.contents import Contents
from gc25d.settings.rates import with_bound_rates
from gc25d.settings.steps import step_json, step_settings
from gc25d.settings.tree import Settings
from gc25d.workflow import binding, kept_contents
from gc25d.workflow.binding import began_with, check_binding
from gc25d.workflow.captures import check_captures
from gc25d.workflow.imported_code import code_digest
from gc25d.workflow.runs import check_shared_runs, check_val_runs, raw_runs, settings_paths

_LONG_AGO = (0, 0)


def settings_contents(
    settings: Settings, named: Contents | None = None
) -> dict[str, dict[str, Any]]:
    """Name of each step with a settings file → what the file should hold.

    Args:
        settings: of the whole pipeline.
        named: what is in the files that settings name.

    Raises:
        UserError: the run in this folder is bound to other settings, or these do not fit the runs.
    """
    folders = raw_runs(settings)
    runs = tuple(folders)
    check_val_runs(settings.prep.val_runs, runs)
    check_captures(settings, folders)
    contents = {name: step_json(step) for name, step in step_settings(settings, runs).items()}
    contents["regression"]["code"] = code_digest()
    files = settings_paths(settings)
    contents = kept_contents.settled(settings, contents, named or {})
    began = began_with()
    if settings.train.reset_lr_on_resume and began:
        contents["train"] = with_bound_rates(contents["train"], began)
    check_binding(contents["train"], settings.dataset)
    if settings.capture.source == "external":
        del contents["capture"]  # nothing is ever written below somebody else's captures
    if not holds_json(files["prep"], contents["prep"]):
        check_shared_runs(settings, files["prep"])
    return contents


def write_sources(
    settings: Settings, contents: dict[str, dict[str, Any]], folder: Path
) -> dict[str, Path]:
    """Write what each settings file should hold into `folder`, `<step>.json`.

    Such a source is older than anything where the settings file holds the same already, and new
    where it does not: so that Snakemake copies it exactly then.
    """
    files = settings_paths(settings)
    sources = {}
    for name, content in contents.items():
        sources[name] = folder / f"{name}.json"
        write_json(sources[name], content)
        if holds_json(files[name], content):
            os.utime(sources[name], _LONG_AGO)
    return sources


def keep_record(sources: Mapping[str, Path], warn: Callable[[str], None]) -> None:
    """Restore a run's record that is gone (`workflow.binding`); `sources`: of `write_sources`."""
    binding.keep_record(read_json(sources["train"]), warn)


def check_unchanged(settings: Settings, contents: dict[str, dict[str, Any]]) -> None:
    """A job that a working snakemake submitted sees the settings that it was submitted with.

    The digest of the regression's code is left out: people edit while a run goes on.

    Raises:
        UserError: names the settings files that hold something else.
    """
    files = settings_paths(settings)
    changed = [
        str(files[name])
        for name, content in contents.items()
        if name != "regression" and files[name].exists() and not holds_json(files[name], content)
    ]
    if changed:
        raise UserError(
            f"the settings were changed while snakemake works ({', '.join(changed)} hold others): "
            "put them back, or stop snakemake and give its command again"
        )


def source_of(path: str, files: dict[str, Path], sources: dict[str, Path]) -> Path:
    """The source of the settings file `path`."""
    names = {str(file): name for name, file in files.items()}
    return sources[names[path]]


def missing(outputs: Iterable[str | Path]) -> bool:
    """Whether one of a job's outputs is not there."""
    return any(not os.path.lexists(output) for output in outputs)


def alternatives(names: Iterable[str]) -> str:
    """A pattern that matches these names and nothing else."""
    return "|".join(re.escape(name) for name in names) or "(?!)"
