"""The arguments that the trainer and the processes that it starts have in common."""

import argparse
from pathlib import Path

from gc25d.steps import cli
from gc25d.train.processes.launch import Layout

PATHS = ("settings", "binding", "data", "weights", "probe", "done")
NUMBERS = ("until", "micro-batch", "save-every", "validate-every", "log-every", "workers")
PLACES = ("nodes", "gpus-per-node", "processes")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser for all of them."""
    made = cli.parser(doc)
    for name in PATHS:
        made.add_argument(f"--{name}", type=Path, required=True)
    add_reads(made)
    for name in (*NUMBERS, *PLACES):
        made.add_argument(f"--{name}", type=int, required=True)
    made.add_argument("--engine", choices=("plain", "deepspeed"), required=True)
    made.add_argument("--cpus-per-node", type=int, default=0)
    made.add_argument("--kernels", choices=("exact", "fastest"), default="exact")
    made.add_argument("--compile", choices=("auto", "on", "off"), default="auto")
    made.add_argument("--recompute", choices=("none", "half", "all", "auto"), default="auto")
    for name in ("lr", "cond-lr"):
        made.add_argument(f"--{name}", type=float, help="from here on")
    return made


def rates(arguments: argparse.Namespace) -> tuple[float, float] | None:
    """The learning rates asked for, if any are."""
    asked = (arguments.lr, arguments.cond_lr)
    return None if None in asked else asked


def add_reads(parser: argparse.ArgumentParser) -> None:
    """The folders that a step reads and that nobody may rebuild meanwhile."""
    parser.add_argument("--reads", type=Path, nargs="*", default=[], help="data sets to hold")


def layout(arguments: argparse.Namespace) -> Layout:
    """The processes asked for."""
    gpu = arguments.gpus_per_node > 0
    return Layout(arguments.nodes, arguments.processes, gpu, arguments.cpus_per_node)
