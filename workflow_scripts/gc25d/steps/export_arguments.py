"""What the export and its verification have in common: from where the metadata comes."""

import argparse
from pathlib import Path
from typing import Any

from gc25d.export.write import export_metadata
from gc25d.records import read_json
from gc25d.settings.steps import TrainStep
from gc25d.steps import cli
from gc25d.train.outputs.results import checkpoint_name

START = {"step": 0, "resumed_from": "", "resumed_step": 0}
"""What done.json would say of the starting weights."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser for the arguments of both; `--done` is left to them."""
    made = cli.parser(doc)
    made.add_argument("--settings", type=Path, required=True)
    made.add_argument("--binding", type=Path, required=True)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--dataset", required=True)
    made.add_argument("--data-root", required=True)
    made.add_argument("--average", action="store_true", help="the weights are their moving average")
    return made


def expected_metadata(
    arguments: argparse.Namespace, settings: TrainStep, tensors_sha256: str
) -> dict[str, str]:
    """The metadata of the export that the arguments describe.

    Args:
        arguments: `done` (a path, or None for the starting weights) and those of `parser`.
        settings: of the run.
        tensors_sha256: digest of its tensors.
    """
    run: Path = arguments.settings.parent
    done: dict[str, Any] = read_json(arguments.done) if arguments.done else START
    return export_metadata(
        settings,
        step=done["step"],
        # An earlier version's done.json names the step alone.
        resumed_from=done.get("resumed_from", checkpoint_name(run, done["resumed_step"])),
        resumed_step=done["resumed_step"],
        dataset=arguments.dataset,
        data_root=arguments.data_root,
        data_fingerprint=read_json(arguments.binding)["data_fingerprint"],
        tensors_sha256=tensors_sha256,
        average=arguments.average,
        lr_changes=done.get("lr_changes", ()),
    )
