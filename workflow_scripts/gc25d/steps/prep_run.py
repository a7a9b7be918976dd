"""Prepare one raw run: latents, semantic ids and index rows of its clips.

Inputs:   --settings  the step's settings (geometry, codec)
          --raw       folder of the raw run (docs/raw-format.md)
          --run-id    its id, <scene>__<run>
          --workers   processes that read clips ahead of the encoder (0: none; never in a result)
Outputs:  --latents   <clip_id>: bf16 [48, F, h, w]
          --ids       <clip_id>.ids: packed uint8 [T, H, W]; <clip_id>.world_to_clip: [T, 4, 4]
          --rows      one JSON line a clip
          --record    the raw files that were read: size in bytes, time in ns, SHA-256 of each

A clip that cannot be read is dropped with its reason and the rest is built; a run that cannot be
read makes empty tensor files and one line with the reason. Both are warnings, not failures.
The codec wan_vae works on a GPU of the node, where there is one, which it shares with jobs of its
own kind.

Example:
  python -m gc25d.steps.prep_run --settings settings/prep.json
    --raw raw/vizdoom/deadly_corridor/run-000 --run-id deadly_corridor__run-000
    --latents data/gc25d_v10/latents/deadly_corridor__run-000.safetensors
    --ids data/gc25d_v10/ids/deadly_corridor__run-000.safetensors
    --rows data/gc25d_v10/index/runs/deadly_corridor__run-000.jsonl
    --record data/gc25d_v10/index/raw/deadly_corridor__run-000.json
"""

import argparse
import contextlib
import functools
import logging
from pathlib import Path

from gc25d.devices import shared_device
from gc25d.prep.encoders.dct import Codec, codec_for
from gc25d.prep.prepare import prepare_run
from gc25d.records import write_jsonl
from gc25d.settings.steps import PrepStep, load_step
from gc25d.steps import cli
from gc25d.tensors import write_tensors
from gc25d.workflow.raw_record import states, write_record
from gc25d.workflow.runs import present_files

logger = logging.getLogger(__name__)

_ENCODER_BYTES = 12 << 30
"""Of GPU memory: 9 GiB for 81 frames of 480 x 832 (bench/results), and what starting takes."""


def main(arguments: argparse.Namespace) -> None:
    """Prepare the run; the rows are written last."""
    settings = load_step(arguments.settings, PrepStep)
    size = settings.geometry
    before = states(present_files(arguments.raw, size.frames))
    with contextlib.ExitStack() as stack:
        prepared = prepare_run(
            arguments.raw,
            arguments.run_id,
            size.frames,
            size.height,
            size.width,
            functools.partial(load_codec, settings, stack),
            arguments.workers,
        )
    write_record(arguments.record, present_files(arguments.raw, size.frames), before)
    write_tensors(arguments.latents, prepared.latents, {})
    write_tensors(arguments.ids, prepared.ids, {})
    write_jsonl(arguments.rows, prepared.rows)
    dropped = sum(row["drop"] for row in prepared.rows)
    logger.info("%s: %d clips, %d dropped", arguments.run_id, len(prepared.latents), dropped)


def load_codec(settings: PrepStep, stack: contextlib.ExitStack) -> Codec:
    """The codec, with a place on a GPU until `stack` ends where it can use one.

    Starting and reading take longer than encoding, so one job alone would leave a GPU idle.
    """
    device = "cpu"
    if settings.codec == "wan_vae":
        device = stack.enter_context(shared_device(_ENCODER_BYTES))
    return codec_for(settings.codec, settings.codec_dir, device)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--latents", type=Path, required=True)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
