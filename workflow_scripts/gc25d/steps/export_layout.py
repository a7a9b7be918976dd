"""Write a verified export as a folder that other programs read.

Inputs: the export and its verification's report. Output: a folder with `--layout native`, Wan's own
shards, or `--layout diffusers`, what `WanTransformer3DModel.from_pretrained` reads, with the
semantic condition in a file of its own. Both serve as `model.init_dir`.

    python -m gc25d.steps.export_layout --export exports/step-200.safetensors \
        --report verify/step-200.json --layout diffusers --text-length 64 \
        --out exports/step-200/diffusers
"""

import argparse
from pathlib import Path

from gc25d.errors import UserError
from gc25d.export.layouts import LAYOUTS, write_layout
from gc25d.export.read import read_export
from gc25d.files import digest_file
from gc25d.records import read_json
from gc25d.steps import cli


def main(arguments: argparse.Namespace) -> None:
    """See that it is the file that was verified, then write the folder.

    Raises:
        UserError: another file than the verified one, or a model that the layout cannot hold.
    """
    verified, found = read_json(arguments.report)["sha256"], digest_file(arguments.export)
    if found != verified:
        raise UserError(
            f"{arguments.export}: its SHA-256 is {found}, {arguments.report} verified {verified}: "
            "delete the report, the next run of snakemake verifies the file anew"
        )
    config, tensors = read_export(arguments.export)
    write_layout(arguments.layout, tensors, config, arguments.out, arguments.text_length)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--text-length", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
