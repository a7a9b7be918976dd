"""Train one segment of the chain: from the newest state at or before its end to its end.

Inputs: train/settings.json, train/binding.json, data/<dataset>. Outputs: the bf16 weights, the
prediction they give on a fixed input, and done.json; beside them, as the run's own records,
train_log.csv, val_log.csv, tensorboard/, history.jsonl and states/.

    python -m gc25d.steps.train --settings train/settings.json --binding train/binding.json \
        --data data/gc25d_v10 --until 200 --resumed-step 0 --micro-batch 8 --save-every 50 \
        --validate-every 100 --log-every 10 --workers 0 --nodes 1 --gpus-per-node 0 \
        --weights train/step-200/weights.safetensors \
        --probe train/step-200/probe.safetensors --done train/step-200/done.json
"""

import argparse
from pathlib import Path

from gc25d.errors import UserError
from gc25d.records import digest_json, locked, read_json
from gc25d.step_settings import TrainStep, load_step
from gc25d.steps import cli
from gc25d.train.segment import Pace, SegmentFiles, Task, train_segment

LOCK_WAIT_S = 10.0


def main(arguments: argparse.Namespace) -> None:
    """Hold the run's lock, check its data, train."""
    run = arguments.settings.parent
    processes = arguments.nodes * arguments.gpus_per_node
    if processes > 1:
        raise UserError(
            f"hardware asks for {processes} GPUs, this trainer runs one process: set "
            "hardware.nodes to 1 and hardware.gpus_per_node to 1"
        )
    binding = read_json(arguments.binding)
    bound = binding["data_fingerprint"]
    settings = read_json(arguments.settings)
    if digest_json(settings) != binding["settings_sha256"]:
        raise UserError(
            f"{arguments.settings} is not what {arguments.binding} was made from: "
            "delete the latter, the next run of snakemake makes it anew"
        )
    with locked(run / "lock", wait_s=LOCK_WAIT_S, held="another trainer works on this run"):
        found = read_json(arguments.data / "READY")["fingerprint"]
        if found != bound:
            raise UserError(
                f"{arguments.data}: its fingerprint is {found}, the run is bound to {bound}: "
                "rebuild the data it was started with, or train elsewhere with --directory"
            )
        train_segment(
            load_step(arguments.settings, TrainStep),
            arguments.data,
            run,
            Task(arguments.until, arguments.resumed_step, digest_json(binding)),
            Pace(
                arguments.micro_batch,
                arguments.save_every,
                arguments.validate_every,
                arguments.log_every,
                arguments.workers,
                gpu=processes == 1,
            ),
            SegmentFiles(arguments.weights, arguments.probe, arguments.done),
        )


if __name__ == "__main__":
    parser = cli.parser(__doc__)
    for name in ("settings", "binding", "data", "weights", "probe", "done"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    numbers = ("until", "micro-batch", "save-every", "validate-every", "log-every", "workers")
    for name in (*numbers, "resumed-step", "nodes", "gpus-per-node"):
        parser.add_argument(f"--{name}", type=int, required=True)
    cli.run(main, parser.parse_args())
