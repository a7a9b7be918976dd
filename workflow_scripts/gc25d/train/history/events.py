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
    """Append one event with the time (UTC) and the host; a line that a kill cut goes."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    place = {"time": now, "host": socket.gethostname(), "pid": os.getpid()}
    append_jsonl(folder / HISTORY, {"event": event, **place, **fields})


def events(folder: Path) -> list[dict[str, Any]]:
    """The events so far; lines that are no event (cut by a full disk or a power cut) are left out.

    Each has at least its name, `event`, and its `step`.
    """
    path = folder / HISTORY
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    told = [row for row in rows if isinstance(row, dict) and "event" in row]
    return [row for row in told if isinstance(row.get("step"), int)]


def ended_badly(folder: Path) -> bool:
    """Whether the last attempt started and never said how it ended."""
    last = events(folder)[-1:]
    return any(row["event"] in ("start", "resume") for row in last)
