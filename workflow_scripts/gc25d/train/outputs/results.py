"""What a finished segment leaves: weights, the prediction they give, means over its steps."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gc25d.dataset.order import Schedule
from gc25d.model.start import model_config, model_from_tensors
from gc25d.records import read_csv, read_json
from gc25d.settings.steps import TrainStep
from gc25d.tensors import write_tensors
from gc25d.train.outputs.logs import TRAIN_LOG
from gc25d.train.outputs.probe import probe
from gc25d.workflow.chain import PLACED, weights_file

MEANS = ("loss", "mse", "grad_norm", "step_time", "data_time")


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write bf16 weights under their native names."""
    write_tensors(path, weights, {})


def write_probe(
    path: Path, weights: Mapping[str, Tensor], settings: TrainStep, device: torch.device
) -> None:
    """Write the prediction that the weights give on a fixed input."""
    frozen = model_from_tensors(model_config(settings), weights, device)
    prediction = probe(frozen, settings.geometry, settings.text_length)
    write_tensors(path, {"prediction": prediction}, {})


def checkpoint_name(run: Path, step: int) -> str:
    """What results call the state at which a segment began, relative to the run's directory.

    A checkpoint of the chain is its folder; a state of an older format that was placed in `run` is
    the record of that; "" is the start.
    """
    placed = run / PLACED.name
    if step and placed.exists() and read_json(placed)["step"] == step:
        return str(PLACED)
    return str(weights_file(step).parent) if step else ""


def summary(
    order: Schedule,
    folders: Sequence[Path],
    *,
    until: int,
    resumed_from: str,
    resumed_step: int,
) -> dict[str, Any]:
    """What done.json says: where the segment began, the data position, means over the segment.

    The means come from the logs' rows, so that they do not depend on crashes; a step trained aside
    shares its first rows with the chain's.
    """
    epoch, within = divmod(until, order.steps_per_epoch)
    logged = {int(row["step"]): row for log in folders for row in read_csv(log / TRAIN_LOG)}
    steps = range(resumed_step + 1, until + 1)
    rows = [logged[step] for step in steps if step in logged]
    return {
        "step": until,
        "resumed_from": resumed_from,
        "resumed_step": resumed_step,
        "epoch": epoch,
        "step_in_epoch": within,
        "steps_per_epoch": order.steps_per_epoch,
        "means": {name: _mean([float(row[name]) for row in rows if row[name]]) for name in MEANS},
    }


def _mean(values: list[float]) -> float | None:
    """None when the log was lost, or no step says it."""
    return statistics.fmean(values) if values else None
