r"""Take gradient norms that another project recorded, {test: {device: norm}}, into our references.

Inputs:  one or more JSON files of that form; perhaps a table {their test: our cell}.
Output:  refs/<DEVICE>.json for each device named there. Cells that are there stay; one that has
         another norm there is an error unless --replace is given. NaN, infinity, 0, unknown devices
         and two norms for one cell are refused. After an error nothing is written. An imported cell
         has no fixture digest and is compared as it is.

Example:
    python -m gc25d.steps.import_refs --refs refs --rtol 0.1 theirs/grad_norms.json
"""

import argparse
import logging
from pathlib import Path

from gc25d.errors import UserError
from gc25d.regression.exchange import (
    by_device,
    import_devices,
    merge_norms,
    read_names,
)
from gc25d.regression.refs import is_rtol, utc_now
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Read and check everything, then write all devices' files or none.

    Raises:
        UserError: see the module's first lines.
    """
    if not is_rtol(arguments.rtol):
        raise UserError(f"--rtol is {arguments.rtol}, expected a fraction such as 0.1")
    norms = merge_norms(arguments.files, read_names(arguments.names))
    source = ", ".join(path.name for path in arguments.files)
    references = by_device(norms, arguments.rtol, source, utc_now())
    counts = import_devices(arguments.refs, references, replace=arguments.replace)
    for device, (added, kept) in counts.items():
        logger.info("%s: %d cells imported, %d were there", device, added, kept)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="JSON {test: {device: norm}}")
    parser.add_argument("--refs", type=Path, required=True, help="folder of <DEVICE>.json")
    parser.add_argument("--rtol", type=float, default=0.1, help="tolerance of the cells (0.1)")
    parser.add_argument("--names", type=Path, help="JSON {their test: our cell}")
    parser.add_argument("--replace", action="store_true", help="replace cells that differ")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
