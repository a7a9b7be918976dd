"""Whether the binding of this folder's run stands for the data that are there.

Asked by input functions, which must not raise: Snakemake takes a file whose job cannot be worked
out for a source.
"""

from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import read_json


def fingerprint(path: Path, key: str) -> str | None:
    """The fingerprint under `key` of READY or a binding; None where none can be read."""
    try:
        content = read_json(path)
    except (UserError, OSError):
        return None
    found = content.get(key) if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def is_bound_to(binding: Path, ready: Path) -> bool:
    """Whether `binding` (train/binding.json) holds the fingerprint that `ready` (READY) tells.

    A file that is not there, or that cannot be read and is to be made again, is bound to nothing.
    """
    bound = fingerprint(binding, "data_fingerprint")
    return bound is not None and bound == fingerprint(ready, "fingerprint")
