"""Encode the prompts of all prepared runs into the text table.

Inputs:   --settings  the step's settings (encoder, length, dim)
          --rows      every run's index rows
Output:   --out       embeddings bf16 [n, L, dim], lengths int64 [n], sorted keys in the metadata

The empty prompt is always there, as NULL_PROMPT. A text key with two texts is an error. Prompts
longer than `length` are cut; the log and the table's metadata name them, and build_index warns.
The encoder umt5 works on a GPU of the node that no other job has claimed, where there is one.

Example:
  python -m gc25d.steps.encode_text --settings settings/text.json
    --rows data/gc25d_v10/index/runs/*.jsonl --out data/gc25d_v10/text/table.safetensors
"""

import argparse
import contextlib
import logging
from pathlib import Path

from gc25d.devices import claimed_device
from gc25d.prep.index import collect_prompts
from gc25d.prep.rows import read_run_rows
from gc25d.prep.text import build_table, cut_faults, encoder_for, write_table
from gc25d.settings.steps import TextStep, load_step
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Encode the prompts."""
    text = load_step(arguments.settings, TextStep).text
    prompts = collect_prompts(row for path in arguments.rows for row in read_run_rows(path))
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(claimed_device()) if text.encoder == "umt5" else "cpu"
        encoder = encoder_for(text.encoder, text.length, text.dim, text.dir, device)
        table = build_table(prompts, encoder, text.length)
    write_table(arguments.out, table)
    for name, reason in cut_faults(table).items():
        logger.info("%s: %s", name, reason)
    logger.info("%d prompts of at most %d tokens", len(table.keys), int(table.lengths.max()))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
