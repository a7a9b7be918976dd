"""Write a checkpoint, or the starting weights, as one `.safetensors`.

Inputs: train/settings.json, train/binding.json and, unless --step is 0, the step's weights.
Output: bf16 tensors under native names with metadata (docs/resume.md says why its bytes repeat).

    python -m gc25d.steps.export --settings train/settings.json --binding train/binding.json \
        --weights train/step-200/weights.safetensors --step 200 --checkpoint-every 200 \
        --dataset gc25d_v10 --data-root data --out exports/step-200.safetensors
"""

import argparse
from pathlib import Path

import torch

from gc25d.export.write import export_metadata, training_weights
from gc25d.model.start import starting_model
from gc25d.model.zoo import wan_config
from gc25d.plan import checkpoint_before
from gc25d.records import read_json
from gc25d.step_settings import TrainStep, load_step
from gc25d.steps import cli
from gc25d.tensors import digest_tensors, write_tensors


def main(arguments: argparse.Namespace) -> None:
    """Gather the tensors and write them."""
    settings = load_step(arguments.settings, TrainStep)
    step = arguments.step
    tensors = training_weights(arguments.weights) if step else starting_weights(settings)
    metadata = export_metadata(
        settings,
        step=step,
        resumed_step=checkpoint_before(step, arguments.checkpoint_every) if step else 0,
        dataset=arguments.dataset,
        data_root=arguments.data_root,
        data_fingerprint=read_json(arguments.binding)["data_fingerprint"],
        tensors_sha256=digest_tensors(tensors),
    )
    write_tensors(arguments.out, tensors, metadata)


def starting_weights(settings: TrainStep) -> dict[str, torch.Tensor]:
    """The weights before the first step, in bf16."""
    model = settings.model
    config = wan_config(model.size, model.vocab, settings.text_dim, settings.text_length)
    start = starting_model(config, settings.train.seed, model.init_dir, model.init_ckpt)
    return {name: p.detach().to(torch.bfloat16) for name, p in start.named_parameters()}


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    for name in ("settings", "binding", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    for name in ("step", "checkpoint-every"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("dataset", "data-root"):
        parser.add_argument(f"--{name}", required=True)
    cli.run(main, parser.parse_args())
