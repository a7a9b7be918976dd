"""The run's history: every start, resume, refusal and end with time and host.

Kept beside the run, never inside a result: results must not depend on what happened on the way.
"""

import datetime
import os
import socket
from pathlib import Path

from gc25d.records import append_jsonl, read_jsonl

HISTORY = "history.jsonl"


def record_event(folder: Path, event: str, **fields: object) -> None:
    """Append one event with the time (UTC) and the host."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    place = {"time": now, "host": socket.gethostname(), "pid": os.getpid()}
    append_jsonl(folder / HISTORY, {"event": event, **place, **fields})


def ended_badly(folder: Path) -> bool:
    """Whether the last attempt started and never said how it ended."""
    path = folder / HISTORY
    events = [row["event"] for row in read_jsonl(path)] if path.exists() else []
    return bool(events) and events[-1] in ("start", "resume")
