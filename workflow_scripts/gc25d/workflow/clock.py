"""Files dated ahead of this machine's clock, which make every comparison of times wrong."""

import time
from collections.abc import Iterable
from pathlib import Path

from gc25d.errors import UserError
from gc25d.settings.tree import Settings
from gc25d.workflow.runs import dataset_root, settings_paths

_ALLOWED_S = 300.0
"""Between the clocks of two hosts, s."""


def check_times(paths: Iterable[Path], now: float | None = None) -> None:
    """Refuse files that were written later than now, by more than clocks may differ.

    Raises:
        UserError: names the first, and by how much.
    """
    now = time.time() if now is None else now
    for path in paths:
        ahead = path.stat().st_mtime - now if path.exists() else 0.0
        if ahead > _ALLOWED_S:
            raise UserError(
                f"{path} is dated {ahead / 60:.0f} minutes ahead of this machine's clock, so that "
                "nothing that changes now would count as newer: set the clock right, or "
                "date the folder's files anew with `find . -exec touch {} +`"
            )


def dated_files(settings: Settings) -> list[Path]:
    """Files, there or not, whose times say whether clocks agree."""
    last = settings.train.max_steps
    results = (f"exports/step-{last}.safetensors", f"eval/step-{last}/metrics.json")
    made = [Path(name) for name in ("train/binding.json", *results)]
    return [*settings_paths(settings).values(), dataset_root(settings) / "READY", *made]
