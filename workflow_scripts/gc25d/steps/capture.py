"""Play one run of a game, or make up one, and write it as a raw run.

Inputs:   --settings  JSON of `gc25d.settings.steps.CaptureStep`
Outputs:  --out       folder of the run: frames.tar, stencil.tar, cameras.npz, skeletons.npz,
                      clips_<frames>.json and, last, meta.json (docs/raw-format.md)

Example:
    python -m gc25d.steps.capture --settings raw/vizdoom/settings.json \
        --scene deadly_corridor --run run-000 --out raw/vizdoom/deadly_corridor/run-000
"""

import argparse
import logging
import re
from collections.abc import Callable
from pathlib import Path

from gc25d.capture.raw.run_spec import RunSpec
from gc25d.errors import UserError
from gc25d.settings.steps import CaptureStep, load_step
from gc25d.steps import cli

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Capture and write the run."""
    step = load_step(arguments.settings, CaptureStep)
    spec = RunSpec(
        scene=arguments.scene,
        run=_number(arguments.run),
        seed=step.capture.seed,
        frames=step.geometry.frames,
        clips=step.capture.clips_per_run,
        width=step.capture.width,
        height=step.capture.height,
        tics_per_frame=step.capture.tics_per_frame,
    )
    _capture_run(step.capture.source)(arguments.out, spec)
    logger.info("%s: %d clips", arguments.out, spec.clips)


def _capture_run(source: str) -> Callable[[Path, RunSpec], None]:
    """The plug-in of a source; only that one is loaded."""
    if source == "synthetic":
        from gc25d.capture.synthetic.capture import capture_run as capture_synthetic

        return capture_synthetic
    from gc25d.capture.doom.capture import capture_run as capture_vizdoom

    return capture_vizdoom


def _number(run: str) -> int:
    found = re.fullmatch(r"run-(\d{3,9})", run)
    if not found:
        raise UserError(f"--run {run!r}: expected run-<number>, such as run-000")
    return int(found[1])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True, help="CaptureStep JSON")
    parser.add_argument("--scene", required=True, help="scene of the settings' source")
    parser.add_argument("--run", required=True, help="name of the run: run-000")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
