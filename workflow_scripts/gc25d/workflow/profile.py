"""The options of Snakemake that the workflow rests on, as `profiles/default` sets them."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gc25d.errors import UserError


def command_line() -> Any:
    """The arguments that Snakemake's own program works by; None where another program runs it.

    While it reads the rules, Snakemake tells them to nobody. To parse them again is no way: a
    relative profile would be looked for in the working folder, to which it has changed by then.
    """
    frame = inspect.currentframe()
    while frame and not (
        frame.f_globals.get("__name__") == "snakemake.cli" and "args" in frame.f_locals
    ):
        frame = frame.f_back
    return frame.f_locals["args"] if frame else None


def check_profile(given: Any, repository: Path) -> None:
    """Refuse to plan jobs by other rules than those of the workflow's profile.

    Snakemake prefers a `profiles/default` of the folder that it is started in, and by its own
    defaults reruns finished segments.

    Args:
        given: Snakemake's arguments, profiles included.
        repository: folder of the Snakefile.

    Raises:
        UserError: names each option that differs, and the remedy.
    """
    if given.lint or given.list_rules or given.list_target_rules or given.unlock or given.reporter:
        return
    profile = repository / "profiles/default"
    wanted = yaml.safe_load((profile / "config.yaml").read_text())
    found = options(given)
    wrong = [
        f"{name} is {found[name]} instead of {wanted[name]}"
        for name in found
        if found[name] != wanted[name]
    ]
    if wrong:
        raise UserError(
            f"{'; '.join(wrong)}: finished steps would run again, or half-written files count as "
            f"whole. Give --workflow-profile {profile}, or the same values in a profile of yours"
        )


def options(given: Any) -> Mapping[str, Any]:
    """The options, by their names in a profile."""
    return {
        "rerun-triggers": sorted(str(trigger) for trigger in given.rerun_triggers),
        "max-checksum-file-size": given.max_checksum_file_size,
        "rerun-incomplete": given.rerun_incomplete,
    }
