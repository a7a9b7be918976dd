"""Bind the run in this directory to its settings and data, or refuse when either changed.

Inputs: train/settings.json, data/<dataset>/READY. Outputs: train/binding.json (the same content for
the same binding) and, the first time, train/run.json, which stays for the life of the run.

    python -m gc25d.steps.bind_run --settings train/settings.json \
        --ready data/gc25d_v10/READY --dataset gc25d_v10 --out train/binding.json
"""

import argparse
import logging
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import digest_json, read_json, write_json
from gc25d.steps import cli
from gc25d.workflow.binding import (
    CONTENTS,
    RUN_RECORD,
    check_binding,
    keep_record,
    refusal,
    run_record,
)

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Compare with the run's record, or make it."""
    settings = read_json(arguments.settings)
    fingerprint = read_json(arguments.ready)["fingerprint"]
    check_binding(settings, arguments.dataset)
    keep_record(settings, logger.warning)
    record = run_record()
    if record is None:
        both = {"dataset": arguments.dataset, "data_fingerprint": fingerprint}
        write_json(RUN_RECORD, {**both, "settings": settings})
    elif (bound := record["data_fingerprint"]) != fingerprint:
        raise UserError(
            refusal([f"data fingerprint is {fingerprint}, the run was started with {bound}"])
        )
    binding = {
        "dataset": arguments.dataset,
        "data_fingerprint": fingerprint,
        "settings_sha256": digest_json(settings),
    }
    contents = {CONTENTS: settings[CONTENTS]} if CONTENTS in settings else {}
    write_json(arguments.out, {**binding, **contents})


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
