"""Train one segment of the chain: from the newest state at or before its end to its end.

Inputs: train/settings.json, train/binding.json, data/<dataset>. Outputs: the bf16 weights, the
prediction they give on a fixed input, and done.json; beside them, as the run's own records,
train_log.csv, val_log.csv, tensorboard/, history.jsonl and states/. Nobody builds the data sets of
--reads anew meanwhile.

The plain engine trains in this process. For the deepspeed engine this process holds the run's lock
and starts gc25d.steps.train_rank once for each GPU, on several nodes through `srun`. The status is
75 after a request to stop (the same command goes on), and otherwise that of the first process that
failed.

    python -m gc25d.steps.train --settings train/settings.json --binding train/binding.json \
        --data data/gc25d_v10 --until 200 --micro-batch 8 --save-every 50 \
        --validate-every 100 --log-every 10 --workers 0 --engine plain --nodes 1 --processes 1 \
        --gpus-per-node 0 --weights train/step-200/weights.safetensors \
        --probe train/step-200/probe.safetensors --done train/step-200/done.json
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from gc25d.errors import UserError
from gc25d.locks import locked
from gc25d.records import digest_json, read_json
from gc25d.steps import cli, train_arguments
from gc25d.train.processes import launch
from gc25d.train.processes.signals import EXIT_STATUS
from gc25d.workflow.data_lock import reading

logger = logging.getLogger(__name__)

LOCK_WAIT_S = 10.0


def main(arguments: argparse.Namespace) -> None:
    """Hold the run's lock, check its data, train."""
    run = arguments.settings.parent
    binding = read_json(arguments.binding)
    bound = binding["data_fingerprint"]
    settings = read_json(arguments.settings)
    if digest_json(settings) != binding["settings_sha256"]:
        raise UserError(
            f"{arguments.settings} is not what {arguments.binding} was made from: "
            "delete the latter, the next run of snakemake makes it anew"
        )
    held = locked(run / "lock", wait_s=LOCK_WAIT_S, held="another trainer works on this run")
    with held, reading(arguments.reads):
        found = read_json(arguments.data / "READY")["fingerprint"]
        if found != bound:
            raise UserError(
                f"{arguments.data}: its fingerprint is {found}, the run is bound to {bound}: "
                "rebuild the data it was started with, or train elsewhere with --directory"
            )
        if arguments.engine == "plain":
            from gc25d.steps.train_rank import train  # torch, which a mere launcher does without

            train(arguments)
        else:
            start_processes(arguments, sys.argv[1:])


def start_processes(arguments: argparse.Namespace, passed_on: Sequence[str]) -> None:
    """Run the job's processes; ends this one with their status unless it is 0."""
    layout = train_arguments.layout(arguments)
    logger.info("starting %d process(es) on %d node(s)", layout.world_size, layout.nodes)
    if layout.nodes > 1:
        status = launch.run_nodes(launch.node_command(passed_on), layout)
    else:
        status = launch.run_processes(launch.rank_command(passed_on), layout)
    if status not in (0, EXIT_STATUS):
        logger.error("training ended with status %d: its processes say why above", status)
    if status:
        sys.exit(status)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    return train_arguments.parser(__doc__).parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
