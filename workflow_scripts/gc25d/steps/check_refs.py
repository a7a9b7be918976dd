r"""Measure the gradient norms again and compare them with the recorded references.

Inputs:  the regression settings (JSON) and refs/<DEVICE>.json, which may be missing; base weights
         where `regression.init_from` names a folder.
Output:  a report (JSON) with norm, reference, relative error, tolerance and outcome of each cell.
         The same as a table in the log. Status 1 when a cell is out of tolerance or its norm is no
         positive number; a cell without a reference is a visible skip, and a failure when
         `regression.strict` is set.

Example:
    python -m gc25d.steps.check_refs --settings settings/regression.json --device CPU \
        --refs refs/CPU.json --out regression/CPU.json
"""

import argparse
import logging
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import write_json
from gc25d.regression.cells import Cell, measured_cells
from gc25d.regression.devices import torch_device_for
from gc25d.regression.gradnorm import measure
from gc25d.regression.refs import Reference, Verdict, compare, read_refs
from gc25d.regression.report import report_json, verdict_table
from gc25d.settings.steps import RegressionStep, load_step
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Check all cells; the table and the report come before the failure.

    Raises:
        UserError: another device, a damaged reference file, or a cell failed.
    """
    step = load_step(arguments.settings, RegressionStep)
    regression = step.regression
    verdicts, refused = check_cells(arguments.device, arguments.refs, step)
    report = report_json(arguments.device, verdicts, refused, strict=regression.strict)
    quiet = report["passed"] and all(verdict.outcome == "ok" for verdict in verdicts)
    table = verdict_table(arguments.device, verdicts, strict=regression.strict)
    logger.log(logging.INFO if quiet else logging.WARNING, "\n%s", table)
    write_json(arguments.out, report)
    if not report["passed"]:
        failed = [v for v in verdicts if v.failed(regression.strict)]
        raise UserError("; ".join([*map(_failure, failed), *refused]))


def check_cells(
    device_key: str, refs: Path, step: RegressionStep
) -> tuple[list[Verdict], list[str]]:
    """The verdict of each cell, and why the others were refused."""
    device, regression = torch_device_for(device_key), step.regression
    references = read_refs(refs, device_key)
    verdicts, refused = [], []
    for cell in measured_cells(regression.init_from, step.base):
        rtol = tolerance(cell, references.get(cell.name), regression.rtol)
        try:
            measured = measure(cell, device, regression.repeats)
            verdicts.append(compare(measured, references, rtol, rtol=rtol))
        except UserError as error:
            refused.append(str(error))
    return verdicts, refused


def tolerance(cell: Cell, reference: Reference | None, setting: float) -> float:
    """The cell's own tolerance: given with an import, or in the table of cells; else the setting's.

    What is recorded with a norm measured here is but the setting of that day.
    """
    if reference is not None and reference.origin.source:
        return reference.rtol
    return setting if cell.rtol is None else cell.rtol


def _failure(verdict: Verdict) -> str:
    found = f"{verdict.cell}: gradient norm {verdict.norm:.6g}"
    if verdict.relative_error is None:
        return f"{found} has a {verdict.outcome} reference and regression.strict is set: record it"
    return (
        f"{found}, recorded {verdict.reference:.6g}: {verdict.relative_error:.1%} off, tolerance "
        f"{verdict.rtol:.0%}; find the change, or record anew if it is meant"
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="regression settings, JSON")
    parser.add_argument("--device", required=True, help="device key: CPU, L40S, H200, ...")
    parser.add_argument(
        "--refs", type=Path, required=True, help="refs/<DEVICE>.json; may be absent"
    )
    parser.add_argument("--out", type=Path, required=True, help="the report, JSON")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
