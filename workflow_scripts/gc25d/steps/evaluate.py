r"""Sample validation clips with an export's weights and score them against the recording.

Inputs:   --settings   the step's settings (geometry, codec, evaluation)
          --weights    the export
          --data       the data set's folder
          --raw-root   folder of the raw captures, whose frames are the truth: it holds
                       <subset>/<scene>/<run>
Outputs:  --clips      folder: <clip>.mp4 (GT | generated | parts), <clip>.json (scores by frame)
          --sheet      PNG, a few frames of every clip
          --scores     PNG, PSNR and SSIM over the frames (optional)
          --out        metrics.json, written last: means over frames 1.., then over clips, beside
                       the codec's own scores on the same clips (the ceiling)

It samples on a GPU of the node that no other job has claimed, where there is one.

Example:
  python -m gc25d.steps.evaluate --settings eval/settings.json \
    --weights exports/step-200.safetensors --data data/gc25d_v10 --raw-root raw \
    --out eval/step-200/metrics.json --clips eval/step-200/clips --sheet eval/step-200/sheet.png
"""

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.devices import claimed_device
from gc25d.errors import UserError
from gc25d.evaluate.clips import EvaluatedClip, Evaluator, choose_clips
from gc25d.evaluate.curves import save_png, scores_figure
from gc25d.evaluate.metrics import mean_scores
from gc25d.evaluate.panels import (
    clip_pictures,
    clip_sheet,
    stack_sheets,
    video_frames,
    write_mp4,
    write_png,
)
from gc25d.evaluate.results import clip_result, frame_results, metrics_json
from gc25d.export.read import load_model
from gc25d.files import digest_file
from gc25d.prep.encoders.dct import codec_for
from gc25d.records import read_json, write_json
from gc25d.sampling.sample import Plan
from gc25d.settings.steps import EvalStep, load_step
from gc25d.settings.tree import Geometry
from gc25d.steps import cli, train_arguments
from gc25d.tensors import read_metadata
from gc25d.workflow.data_lock import reading

logger = logging.getLogger(__name__)


def main(arguments: argparse.Namespace) -> None:
    """Evaluate clip by clip; metrics.json comes last.

    Raises:
        UserError: data of another geometry, an unknown clip, a damaged file, or no raw frames.
    """
    settings = load_step(arguments.settings, EvalStep)
    torch.set_num_threads(settings.cpu_threads)
    chosen = settings.evaluation
    with reading(arguments.reads):
        dataset = _dataset(arguments.data, settings.geometry)
        clip_ids = choose_clips(dataset, chosen.clips, chosen.n)
        with claimed_device() as device:
            logger.info("%s: %d clips on %s", arguments.weights, len(clip_ids), device)
            evaluator = _evaluator(arguments, settings, dataset, torch.device(device))
            _evaluate(arguments, settings, evaluator, clip_ids)


def _evaluate(
    arguments: argparse.Namespace, settings: EvalStep, evaluator: Evaluator, clip_ids: list[str]
) -> None:
    """Write every clip's files as it comes, then the pictures of all, then the metrics."""
    started = time.perf_counter()
    origin = _origin(arguments)
    sheets, clips, scores, ceilings = [], [], [], []
    for clip in evaluator.run(clip_ids, logger.info):
        sheets.append(_write_clip(arguments.clips, clip))
        clips.append(clip_result(clip.scores, clip.ceiling, clip.sampling_s))
        scores.append(clip.scores)
        ceilings.append(clip.ceiling)
        means = clip.scores.means
        logger.info("%s: %.2f dB, SSIM %.3f", clip.clip_id, means.psnr, means.ssim)
    write_png(arguments.sheet, stack_sheets(sheets))
    if arguments.scores:
        save_png(arguments.scores, scores_figure(scores, ceilings))
    metrics = metrics_json(
        mean_scores(scores),
        mean_scores(ceilings),
        clips,
        origin=origin,
        settings=settings.model_dump(mode="json"),
        seconds=time.perf_counter() - started,
    )
    write_json(arguments.out, metrics)
    logger.info("mean %.2f dB, SSIM %.3f", metrics["psnr"], metrics["ssim"])


def _dataset(data: Path, geometry: Geometry) -> ClipDataset:
    """The validation clips, which must have the settings' geometry."""
    dataset = ClipDataset(data, "val")
    if dataset.shape != (geometry.frames, geometry.height, geometry.width):
        raise UserError(
            f"{data} holds clips of {list(dataset.shape)} (frames, height, width), the "
            f"settings say {[geometry.frames, geometry.height, geometry.width]}: rebuild one"
        )
    return dataset


def _evaluator(
    arguments: argparse.Namespace, settings: EvalStep, dataset: ClipDataset, device: torch.device
) -> Evaluator:
    model = load_model(arguments.weights, device)
    if device.type == "cuda":
        model.to(torch.bfloat16)  # the export's own type: nothing is rounded
    chosen = settings.evaluation
    return Evaluator(
        model=model,
        codec=codec_for(settings.codec, settings.codec_dir, str(device)),
        dataset=dataset,
        raw_root=arguments.raw_root,
        plan=Plan(chosen.steps, chosen.shift, chosen.cfg, chosen.sem_cfg),
        sem_mode=chosen.sem_mode,
        seed=chosen.seed,
        device=device,
        threads=settings.cpu_threads,
    )


def _write_clip(folder: Path, clip: EvaluatedClip) -> np.ndarray:
    """Write a clip's video and scores; returns its part of the contact sheet."""
    pictures = clip_pictures(clip.clip_id, clip.truth, clip.generated, clip.sem_ids)
    write_mp4(folder / f"{clip.clip_id}.mp4", video_frames(pictures), clip.fps)
    write_json(folder / f"{clip.clip_id}.json", frame_results(clip.scores, clip.ceiling))
    return clip_sheet(pictures)


def _origin(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was evaluated, by content; other data than the training's is said aloud."""
    metadata = read_metadata(arguments.weights)
    trained = metadata.get("data_fingerprint", "")
    found = read_json(arguments.data / "READY")["fingerprint"]
    if trained != found:
        logger.warning("%s was trained on other data than %s", arguments.weights, arguments.data)
    return {
        "step": int(metadata.get("step", 0)),
        "weights_sha256": digest_file(arguments.weights),
        "data_fingerprint": found,
        "trained_on": trained,
    }


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = cli.parser(__doc__)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--raw-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clips", type=Path, required=True)
    parser.add_argument("--sheet", type=Path, required=True)
    parser.add_argument("--scores", type=Path)
    train_arguments.add_reads(parser)
    return parser.parse_args()


if __name__ == "__main__":
    cli.run(main, parse_arguments())
