"""The run's history: every start, resume and end with time and host.

Kept beside the run, never inside a result: results must not depend on what happened on the way.
"""

import contextlib
import datetime
import json
import os
import socket
from pathlib import Path

from gc25d.records import append_jsonl

HISTORY = "history.jsonl"


def record_event(folder: Path, event: str, **fields: object) -> None:
    """Append one event with the time (UTC) and the host."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    place = {"time": now, "host": socket.gethostname(), "pid": os.getpid()}
    append_jsonl(folder / HISTORY, {"event": event, **place, **fields})


def ended_badly(folder: Path) -> bool:
    """Whether the last attempt started and never said how it ended."""
    path = folder / HISTORY
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # a line cut by a full disk or a lost power supply
            return json.loads(line)["event"] in ("start", "resume")
    return False
