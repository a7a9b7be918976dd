"""One process of a training job; started by gc25d.steps.train, whose arguments it takes.

Its launcher sets its place in the environment (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT, as torch.distributed has them; from anyone else they are ignored), and it
ends with its launcher. The first process writes the results and the log; the others add their
warnings and errors to it.
"""

import argparse
import sys
import time

from gc25d.records import digest_json, read_json
from gc25d.settings.steps import TrainStep, load_step
from gc25d.steps import cli, train_arguments
from gc25d.train.engine import SharedError
from gc25d.train.pace import Pace
from gc25d.train.processes.launch import Place, own_place
from gc25d.train.segment import SegmentFiles, Task, train_segment

FIRST_TELLS_S = 5.0
"""How long the others wait while the first process reports what all of them found."""


def main(arguments: argparse.Namespace) -> None:
    """Train with the other processes."""
    try:
        train(arguments)
    except SharedError:
        if rank() == 0:
            raise
        time.sleep(FIRST_TELLS_S)
        sys.exit(1)


def train(arguments: argparse.Namespace) -> None:
    """Train one segment; every process of the job alike."""
    binding = digest_json(read_json(arguments.binding))
    train_segment(
        load_step(arguments.settings, TrainStep),
        arguments.data,
        arguments.settings.parent,
        Task(arguments.until, binding),
        Pace(
            arguments.micro_batch,
            arguments.save_every,
            arguments.validate_every,
            arguments.log_every,
            arguments.workers,
            gpu=arguments.gpus_per_node > 0,
            engine=arguments.engine,
            exact=arguments.kernels == "exact",
            compile=arguments.compile,
            recompute=arguments.recompute,
            rates=train_arguments.rates(arguments),
        ),
        SegmentFiles(arguments.weights, arguments.probe, arguments.done),
    )


def rank() -> int:
    """The number of this process."""
    return (own_place() or Place()).rank


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    return train_arguments.parser(__doc__).parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments(), rank=rank())
