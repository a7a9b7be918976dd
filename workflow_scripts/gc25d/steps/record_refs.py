r"""Measure the gradient norm of every (model, method) cell on this device and record it.

Inputs:  the regression settings (JSON); base weights where `regression.init_from` names a folder.
Output:  refs/<DEVICE>.json with norm, tolerance, spread, versions and date of each cell. Cells that
         are not measured here stay in the file. On another device than the one asked for: one line
         that names the device found, and nothing is written. CPU works everywhere.

Example:
    python -m gc25d.steps.record_refs --settings settings/regression.json --device L40S \
        --out refs/L40S.json
"""

import argparse
import logging
from pathlib import Path

from gc25d.regression.cells import measured_cells
from gc25d.regression.devices import torch_device_for
from gc25d.regression.gradnorm import measure, origin_of
from gc25d.regression.refs import record, reference_of
from gc25d.settings.steps import RegressionStep, load_step
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Measure all cells, then write once.

    Raises:
        UserError: another device, a norm that can be no reference, or a damaged file.
    """
    step = load_step(arguments.settings, RegressionStep)
    regression = step.regression
    device = torch_device_for(arguments.device)
    origin = origin_of(device)
    measured = {}
    for cell in measured_cells(regression.init_from, step.base):
        rtol = regression.rtol if cell.rtol is None else cell.rtol
        reference = reference_of(measure(cell, device, regression.repeats), rtol, origin)
        logger.info("%s: %.6g, spread %.1e", cell.name, reference.norm, reference.spread)
        measured[cell.name] = reference
    record(arguments.out, arguments.device, measured)
    logger.info("%s: %d cells recorded on %s", arguments.out, len(measured), origin.device_name)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="regression settings, JSON")
    parser.add_argument("--device", required=True, help="device key: CPU, L40S, H200, ...")
    parser.add_argument("--out", type=Path, required=True, help="refs/<DEVICE>.json")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
