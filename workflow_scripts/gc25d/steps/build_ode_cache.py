"""Make the teacher's paths that `kd` regresses; one that was stopped goes on where it was.

Inputs: train/settings.json, data/<dataset>, the teacher's weights. Output: the folder
`train.kd.cache` with metadata.json, a path for each training clip, and COMPLETE at the end. With
several GPUs one process for each makes its share, and the last to finish writes COMPLETE.

    python -m gc25d.steps.build_ode_cache --settings train/settings.json \
        --data data/gc25d_v10 --batch 4 --gpus 0
"""

import argparse
import functools
import logging
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.errors import UserError
from gc25d.methods.ode.cache import OdeCache
from gc25d.methods.ode.paths import build_paths, ode_cache, ode_plan
from gc25d.methods.teacher import build_teacher, teacher_guidance
from gc25d.settings.steps import TrainStep, load_step
from gc25d.steps import cli, train_arguments
from gc25d.train.processes.launch import Layout, Place, own_place, run_processes
from gc25d.workflow.data_lock import reading

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Make the missing paths, here or in one process a GPU."""
    place = own_place()
    if arguments.gpus > 1 and place is None:
        command = [sys.executable, "-m", "gc25d.steps.build_ode_cache", *sys.argv[1:]]
        status = run_processes(command, Layout(1, arguments.gpus, gpu=True))
        if status:
            sys.exit(status)
        return
    with reading(arguments.reads):
        make_missing(arguments, place or Place())


def make_missing(arguments: argparse.Namespace, place: Place) -> None:
    """Make this process's missing paths; the last process to end seals the cache."""
    settings = load_step(arguments.settings, TrainStep)
    if settings.train.method != "kd":
        raise UserError(
            f"{arguments.settings}: train.method is {settings.train.method}: only kd has paths"
        )
    torch.set_num_threads(settings.train.cpu_threads)
    clips = ClipDataset(arguments.data, "train")
    cache = ode_cache(settings, clips)
    cache.claim()
    share = (place.rank, place.world_size)
    if cache.missing(range(share[0], len(clips), share[1])):
        build(settings, cache, clips, share, arguments.batch, _device(arguments.gpus, place))
    sealed = cache.seal()
    logger.info("%s is %s", cache.folder, "complete" if sealed else "waiting for other processes")


def build(
    settings: TrainStep,
    cache: OdeCache,
    clips: ClipDataset,
    share: tuple[int, int],
    batch_size: int,
    device: torch.device,
) -> None:
    """Make this process's missing paths on `device`."""
    low = functools.partial(torch.autocast, device.type, torch.bfloat16)
    build_paths(
        cache,
        clips,
        build_teacher(settings, device).eval().requires_grad_(False),
        ode_plan(settings),
        teacher_guidance(settings, clips),
        seed=settings.train.seed,
        batch_size=batch_size,
        share=share,
        autocast=low if settings.train.precision == "bf16" else nullcontext,
    )


def _device(gpus: int, place: Place) -> torch.device:
    """The process's GPU, or the CPU.

    Raises:
        UserError: GPUs are asked for and there is none.
    """
    if not gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "hardware.gpus_per_node asks for GPUs and torch finds none here: run on a GPU node, "
            "or set it to 0"
        )
    return torch.device("cuda", place.local_rank)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    train_arguments.add_reads(parser)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    arguments = parser.parse_args()
    if (own_place() or Place()).rank:
        arguments.log = None  # the first process has the file
    return arguments


if __name__ == "__main__":
    cli.run(main, parse_arguments())
