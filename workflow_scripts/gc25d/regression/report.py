"""The outcome of a gradient-norm check, for people and as JSON."""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gc25d.regression.refs import Verdict

WIDTH = 110
"""Characters of the table, in a terminal and in a log alike."""
REMARKS = {
    "ok": "ok",
    "out": "OUT OF TOLERANCE",
    "missing": "skipped: nothing recorded",
    "stale": "skipped: recorded for another fixture",
}


def verdict_table(device: str, verdicts: Sequence[Verdict], *, strict: bool) -> str:
    """One row a cell: norm, reference, relative error, tolerance, spread, outcome."""
    table = Table(title=f"Block-0 gradient norms on {device}", title_justify="left")
    table.add_column("cell", no_wrap=True)
    for heading in ("norm", "reference", "rel. error", "rtol", "spread"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outcome")
    for v in verdicts:
        remark = REMARKS[v.outcome]
        failed = v.failed(strict) and v.outcome != "out"
        table.add_row(
            v.cell,
            f"{v.norm:.6g}",
            _number(v.reference, ".6g"),
            _number(v.relative_error, ".2e"),
            f"{v.rtol:g}",
            f"{v.spread:.1e}",
            f"{remark} (strict: FAILED)" if failed else remark,
        )
    buffer = io.StringIO()
    Console(file=buffer, width=WIDTH, color_system=None).print(table)
    return buffer.getvalue().rstrip()


def report_json(
    device: str, verdicts: Sequence[Verdict], refused: Sequence[str], *, strict: bool
) -> dict[str, Any]:
    """All of it as strict JSON; `passed` is what the exit status says."""
    failed = [v.cell for v in verdicts if v.failed(strict)]
    return {
        "device": device,
        "passed": not failed and not refused,
        "strict": strict,
        "failed": failed,
        "refused": list(refused),
        "cells": {v.cell: dataclasses.asdict(v) for v in verdicts},
    }


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
