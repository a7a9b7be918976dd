"""Put one segment together: model, method, engine, data position, state; run it; write it out."""

import functools
import logging
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule
from gc25d.errors import UserError
from gc25d.methods.finetune import FinetuneMethod, OptimizerConfig
from gc25d.model.start import model_config, model_from_tensors, starting_model
from gc25d.records import read_csv, write_json
from gc25d.step_settings import TrainStep
from gc25d.tensors import write_tensors
from gc25d.train.checkpoint import load_state, newest_state, newest_step, prune_states, save_state
from gc25d.train.engine import PlainEngine
from gc25d.train.feed import MicroBatches, Span, read_ahead
from gc25d.train.history import ended_badly, record_event
from gc25d.train.logs import TRAIN_LOG, RunLog
from gc25d.train.loop import Cadence, Segment
from gc25d.train.probe import probe
from gc25d.train.validate import Validation, validation_batches

logger = logging.getLogger(__name__)

STATES = "states"
ASIDE = "aside"
MEANS = ("loss", "mse", "grad_norm", "step_time", "data_time")


@dataclass(frozen=True)
class SegmentFiles:
    """Where a segment's results go."""

    weights: Path
    probe: Path
    done: Path


@dataclass(frozen=True)
class Task:
    """What a segment is asked for."""

    until: int
    """The step to train to."""
    resumed_step: int
    """The chain's checkpoint before it; 0 is the start."""
    binding: str
    """Digest of the run's settings and data; states of another binding are refused."""


@dataclass(frozen=True)
class Pace:
    """Settings of a segment that may change under a run.

    A smaller micro-batch adds gradients in another order: equal to rounding, not to the bit.
    """

    micro_batch: int
    save_every: int
    validate_every: int
    log_every: int
    workers: int
    gpu: bool = False


def train_segment(
    settings: TrainStep, data: Path, run: Path, task: Task, pace: Pace, files: SegmentFiles
) -> None:
    """Train to step `task.until`, from the newest state at or before it, and write the results.

    A step behind the chain's newest state is trained aside: the chain's states and logs stay.

    Raises:
        UserError: no valid state although there were some, no data, or a non-finite loss.
    """
    until = task.until
    folder = run if newest_step(run / STATES) <= until else run / ASIDE / f"step-{until}"
    clips = training_clips(settings, data)
    engine = PlainEngine(settings.train.precision, settings.train.cpu_threads, gpu=pace.gpu)
    method = build_method(settings)
    engine.prepare(method)
    method.on_train_start()
    start = resume(method, task, list(dict.fromkeys([run / STATES, folder / STATES])))
    crashed = ended_badly(folder)
    record_event(folder, "resume" if start else "start", step=start, until=until, crashed=crashed)
    saves = functools.partial(save_rolling, folder / STATES, task, method)
    segment = Segment(
        method,
        engine,
        fixed_validation(settings, data, clips, pace, engine),
        Cadence(until, pace.save_every, pace.validate_every),
        settings.train.grad_clip,
        saves,
    )
    span = Span(start, until)
    feed = MicroBatches(clips, schedule(settings, clips), pace.micro_batch, span)
    with RunLog(folder, start, until, pace.log_every) as log:
        segment.run(read_ahead(feed, pace.workers), start, log)
    write_results(method, settings, files)
    write_json(files.done, summary(settings, clips, [run, folder], task))
    record_event(folder, "finish", step=until)


def save_rolling(root: Path, task: Task, method: FinetuneMethod, step: int) -> None:
    """Write the state after `step`; the segment's last one starts the next segment."""
    save_state(
        root,
        step,
        method.model,
        method.optimizer,
        binding=task.binding,
        checkpoint=step == task.until,
    )
    prune_states(root)


def fixed_validation(
    settings: TrainStep, data: Path, clips: ClipDataset, pace: Pace, engine: PlainEngine
) -> Validation:
    """The run's validation clips, timesteps and noise."""
    fixed = settings.validation
    val = ClipDataset(data, "val")
    batches = validation_batches(val, fixed.n, pace.micro_batch, engine.device)
    return Validation(batches, clips.table, fixed.timesteps, fixed.seed)


def summary(
    settings: TrainStep, clips: ClipDataset, folders: list[Path], task: Task
) -> dict[str, Any]:
    """What done.json says: the checkpoint before, the data position, means over the segment.

    The means come from the logs' rows, so that they do not depend on crashes; a step trained aside
    shares its first rows with the chain's.
    """
    order = schedule(settings, clips)
    epoch, within = divmod(task.until, order.steps_per_epoch)
    logged = {int(row["step"]): row for log in folders for row in read_csv(log / TRAIN_LOG)}
    steps = range(task.resumed_step + 1, task.until + 1)
    rows = [logged[step] for step in steps if step in logged]
    return {
        "step": task.until,
        "resumed_step": task.resumed_step,
        "epoch": epoch,
        "step_in_epoch": within,
        "steps_per_epoch": order.steps_per_epoch,
        "means": {name: _mean([float(row[name]) for row in rows]) for name in MEANS},
    }


def _mean(values: list[float]) -> float | None:
    """None when the log was lost."""
    return statistics.fmean(values) if values else None


def training_clips(settings: TrainStep, data: Path) -> ClipDataset:
    """The training split with the run's dropouts and mask."""
    samples = settings.samples
    return ClipDataset(
        data,
        "train",
        settings.train.seed,
        samples.text_dropout,
        samples.cond_dropout,
        samples.mask.p,
        samples.mask.coverage,
    )


def schedule(settings: TrainStep, clips: ClipDataset) -> Schedule:
    """Which clips form which step of the run."""
    train = settings.train
    return Schedule(len(clips), train.global_batch, train.grad_accum, train.seed)


def build_method(settings: TrainStep) -> FinetuneMethod:
    """The training method on the run's starting weights."""
    train, model = settings.train, settings.model
    optimizer = OptimizerConfig(train.lr, train.cond_lr, train.weight_decay, train.warmup_steps)
    start = starting_model(model_config(settings), train.seed, model.init_dir, model.init_ckpt)
    return FinetuneMethod(start, seed=train.seed, optimizer=optimizer)


def resume(method: FinetuneMethod, task: Task, roots: list[Path]) -> int:
    """Load the newest valid state at or before the task's end; returns its step, 0 for none.

    Raises:
        UserError: no state is whole although there are some, or it belongs to another run.
    """
    found = [state for root in roots if (state := newest_state(root, task.until))]
    if not found:
        return 0
    state = max(found, key=lambda state: state.step)
    if state.binding != task.binding:
        raise UserError(
            f"{state.folder} was trained with other settings or data than this run is bound to: "
            "set it aside with `python -m gc25d.steps.restart`, or train in another --directory"
        )
    load_state(state, method.model, method.optimizer)
    method.resume_schedules(state.step)
    logger.info("going on from %s", state.folder)
    return state.step


def write_results(method: FinetuneMethod, settings: TrainStep, files: SegmentFiles) -> None:
    """Write bf16 weights under their native names, and the prediction that they give."""
    weights = {n: p.detach().to("cpu", torch.bfloat16) for n, p in method.model.named_parameters()}
    device = next(method.model.parameters()).device
    frozen = model_from_tensors(model_config(settings), weights, device)
    prediction = probe(frozen, settings.geometry, settings.text_length)
    write_tensors(files.probe, {"prediction": prediction}, {})
    write_tensors(files.weights, weights, {})
