"""Write a checkpoint, or the starting weights, as one `.safetensors`.

Inputs: train/settings.json, train/binding.json and, for a trained step, its weights
and done.json; without them the starting weights are written.
Output: bf16 tensors under native names with metadata (docs/resume.md says why its bytes repeat).

    python -m gc25d.steps.export --settings train/settings.json --binding train/binding.json \
        --weights train/step-200/weights.safetensors --done train/step-200/done.json \
        --dataset gc25d_v10 --data-root data --out exports/step-200.safetensors
"""

import argparse
from pathlib import Path

import torch

from gc25d.export.write import check_finite, training_weights
from gc25d.model.start import model_config, starting_model
from gc25d.settings.steps import TrainStep, load_step
from gc25d.steps import cli, export_arguments
from gc25d.tensors import digest_tensors, write_tensors


def main(arguments: argparse.Namespace) -> None:
    """Gather the tensors and write them."""
    settings = load_step(arguments.settings, TrainStep)
    weights: Path | None = arguments.weights
    tensors = training_weights(weights) if weights else starting_weights(settings)
    check_finite(str(weights or "the starting weights"), tensors)
    digest = digest_tensors(tensors)
    metadata = export_arguments.expected_metadata(arguments, settings, digest)
    write_tensors(arguments.out, tensors, metadata)


def starting_weights(settings: TrainStep) -> dict[str, torch.Tensor]:
    """The weights before the first step, in bf16."""
    model = settings.model
    start = starting_model(
        model_config(settings), settings.train.seed, model.init_dir, model.init_ckpt
    )
    return {name: p.detach().to(torch.bfloat16) for name, p in start.named_parameters()}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = export_arguments.parser(__doc__)
    parser.add_argument("--weights", type=Path, help="of the step; without: the start")
    parser.add_argument("--done", type=Path, help="of the step; without: the start")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
