"""The run's history: every start, resume and end with time and host.

Kept beside the run, never inside a result: results must not depend on what happened on the way.
"""

import contextlib
import datetime
import json
import os
import socket
from pathlib import Path
from typing import Any

from gc25d.records import append_jsonl

HISTORY = "history.jsonl"


def record_event(folder: Path, event: str, **fields: object) -> None:
    """Append one event with the time (UTC) and the host."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    place = {"time": now, "host": socket.gethostname(), "pid": os.getpid()}
    append_jsonl(folder / HISTORY, {"event": event, **place, **fields})


def events(folder: Path) -> list[dict[str, Any]]:
    """All events, in their order; lines cut by a full disk or a lost power supply are left out."""
    path = folder / HISTORY
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def ended_badly(folder: Path) -> bool:
    """Whether the last attempt started and never said how it ended."""
    told = events(folder)
    return bool(told) and told[-1]["event"] in ("start", "resume")
