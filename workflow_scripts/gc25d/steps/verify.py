"""Verify an export: everything comes from the written file, read again in this fresh process.

Inputs: the export, the training's weights, probe and done.json, train/settings.json,
train/binding.json. Output: a JSON report, written only when every check passed; the first that
fails is named and ends the step. The forward pass runs on a GPU of the node that no other job has
claimed, where there is one.

    python -m gc25d.steps.verify --settings train/settings.json --binding train/binding.json \
        --export exports/step-200.safetensors --weights train/step-200/weights.safetensors \
        --probe train/step-200/probe.safetensors --done train/step-200/done.json --step 200 \
        --dataset gc25d_v10 --data-root data --out verify/step-200.json
"""

import argparse
from pathlib import Path

import torch

from gc25d.devices import claimed_device
from gc25d.export.read import load_model
from gc25d.export.verify import check_probe, verify_file
from gc25d.model.start import model_config
from gc25d.records import write_json
from gc25d.settings.steps import TrainStep, load_step
from gc25d.steps import cli, export_arguments
from gc25d.tensors import read_tensors
from gc25d.train.outputs.probe import probe


def main(arguments: argparse.Namespace) -> None:
    """Run all checks, then write the report."""
    settings = load_step(arguments.settings, TrainStep)
    torch.set_num_threads(settings.train.cpu_threads)

    def metadata(tensors_sha256: str) -> dict[str, str]:
        expected = export_arguments.expected_metadata(arguments, settings, tensors_sha256)
        return expected | {"step": str(arguments.step)}

    weights = read_tensors(arguments.weights)
    report = verify_file(arguments.export, weights, model_config(settings), metadata)
    with claimed_device() as device:
        exported = load_model(arguments.export, torch.device(device))
        prediction = probe(exported, settings.geometry, settings.text_length)
    expected = read_tensors(arguments.probe)["prediction"]
    difference = check_probe(arguments.export, prediction, expected)
    write_json(arguments.out, {**report, "forward_difference": difference})


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = export_arguments.parser(__doc__)
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--probe", type=Path, required=True)
    parser.add_argument("--done", type=Path, required=True)
    parser.add_argument("--step", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
