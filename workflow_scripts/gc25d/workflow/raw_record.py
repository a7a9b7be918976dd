"""What a prepared run was made from: names, sizes, times and digests of its raw files.

`prep_run` writes it beside the run's rows, the rules compare it at parse time. Times alone do not
tell: a file that is moved or unpacked into its place keeps an old one, and files that were restored
with equal content have a new one. Imports no torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gc25d.errors import UserError
from gc25d.files import digest_file
from gc25d.records import read_json, write_json

States: TypeAlias = dict[str, list[int]]
"""File name → size in bytes, time of the last write in ns."""
Digests: TypeAlias = Callable[[Sequence[Path]], Mapping[Path, str]]
"""Files → SHA-256 (hex) of each."""


def states(files: Iterable[Path]) -> States:
    """Sizes and times as they are now."""
    found = {path.name: path.stat() for path in files}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found.items()}


def write_record(path: Path, files: Sequence[Path], before: States) -> None:
    """Record raw files that a run was prepared from.

    Args:
        path: of the record, JSON.
        files: of the raw run, as they are now.
        before: their states before they were read.

    Raises:
        UserError: one came, went or was written to meanwhile.
    """
    digests = {file.name: digest_file(file) for file in files}
    now = states(files)
    changed = sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )
    if changed:
        raise UserError(
            f"{', '.join(changed)} of this run changed while it was prepared: give the same "
            "command again when nothing writes to the captures"
        )
    write_json(path, {name: [*now[name], digest] for name, digest in digests.items()})


def is_made_from(
    record: Path, files: Sequence[Path], digests: Digests, *, all_there: bool
) -> bool | None:
    """Whether a run was prepared from these files; None where no record tells.

    Args:
        record: that `prep_run` wrote.
        files: of the raw run, as they are now.
        digests: asked for files of the recorded size and another time alone.
        all_there: whether a recorded file that is gone is a difference.
    """
    known = _read(record)
    if known is None:
        return None
    try:
        now = states(files)
        if (all_there and known.keys() - now.keys()) or now.keys() - known.keys():
            return False
        if any(known[name][0] != size for name, (size, _) in now.items()):
            return False
        asked = [file for file in files if known[file.name][1] != now[file.name][1]]
        found = digests(asked)
    except OSError:  # gone or unreadable since the folder was listed: the step will say so
        return False
    return all(known[file.name][2] == found[file] for file in asked)


def _read(record: Path) -> dict[str, list[Any]] | None:
    """The record, or None for none that can be used."""
    try:
        content = read_json(record)
    except UserError:
        return None
    whole = isinstance(content, dict) and all(
        isinstance(entry, list) and len(entry) == 3 for entry in content.values()
    )
    return content if whole else None
