"""Whether the binding of this folder's run stands for the data that are there."""

from pathlib import Path

from gc25d.records import read_json


def is_bound_to(binding: Path, ready: Path) -> bool:
    """Whether `binding` (train/binding.json) holds the fingerprint that `ready` (READY) tells.

    Both are small and written whole, so this is asked at parse time. A file that is not there, or
    that is to be made again, is bound to nothing.
    """
    if not (binding.exists() and ready.exists()):
        return False
    fingerprints = [read_json(binding).get("data_fingerprint"), read_json(ready).get("fingerprint")]
    return fingerprints[0] is not None and fingerprints[0] == fingerprints[1]
