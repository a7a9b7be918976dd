r"""Write our recorded gradient norms in the form that another project uses, {test: {device: norm}}.

Inputs:  reference files <DEVICE>.json; perhaps a table {their test: our cell}.
Output:  one JSON file. What it has of other tests and devices stays.

Example:
    python -m gc25d.steps.export_refs --out theirs/grad_norms.json refs/CPU.json refs/H200.json
"""

import argparse
import logging
from pathlib import Path

from gc25d.regression.exchange import export_norms, read_names, recorded_norms
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Read all references, then write once.

    Raises:
        UserError: a file is missing, damaged or locked.
    """
    norms = recorded_norms(arguments.files)
    export_norms(norms, arguments.out, read_names(arguments.names))
    logger.info("%s: %d cells of %d devices", arguments.out, len(norms), len(arguments.files))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="<DEVICE>.json")
    parser.add_argument("--out", type=Path, required=True, help="JSON {test: {device: norm}}")
    parser.add_argument("--names", type=Path, help="JSON {their test: our cell}")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
