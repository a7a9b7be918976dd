"""The launcher of one node of a training job; started by gc25d.steps.train through `srun`.

It takes that step's arguments, and where it stands: `--node` (number of this node), `--address` and
`--port` (where all processes meet). Its status is that of its first process that failed.
"""

import argparse
import sys

from gc25d.steps import cli, train_arguments
from gc25d.train.processes.launch import Meeting, rank_command, run_processes


def main(arguments: argparse.Namespace) -> None:
    """Run this node's processes; ends with their status."""
    layout = train_arguments.layout(arguments)
    meeting = Meeting(arguments.address, arguments.port)
    sys.exit(run_processes(rank_command(arguments.passed_on), layout, arguments.node, meeting))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    place = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    place.add_argument("--node", type=int, required=True)
    place.add_argument("--address", required=True)
    place.add_argument("--port", type=int, required=True)
    found, passed_on = place.parse_known_args()
    arguments = train_arguments.parser(__doc__).parse_args(passed_on)
    return argparse.Namespace(**vars(arguments), **vars(found), passed_on=passed_on)


if __name__ == "__main__":
    cli.run(main, parse_arguments(), append=True)
