"""Put one segment together: model, method, engine, data position, state; run it; write it out."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule
from gc25d.methods.finetune import FinetuneMethod, OptimizerConfig
from gc25d.model.start import model_from_tensors, starting_model
from gc25d.model.zoo import wan_config
from gc25d.records import write_json
from gc25d.step_settings import TrainStep
from gc25d.tensors import write_tensors
from gc25d.train.checkpoint import load_state, newest_state, newest_step, prune_states, save_state
from gc25d.train.engine import PlainEngine
from gc25d.train.feed import MicroBatches, Span, read_ahead
from gc25d.train.history import ended_badly, record_event
from gc25d.train.logs import RunLog
from gc25d.train.loop import Cadence, Segment
from gc25d.train.probe import probe
from gc25d.train.validate import Validation, validation_batches

logger = logging.getLogger(__name__)

STATES = "states"
ASIDE = "aside"


@dataclass(frozen=True)
class SegmentFiles:
    """Where a segment's results go."""

    weights: Path
    probe: Path
    done: Path


@dataclass(frozen=True)
class Pace:
    """Settings of a segment that never alter its result."""

    micro_batch: int
    save_every: int
    validate_every: int
    log_every: int
    workers: int
    gpu: bool = False


def train_segment(
    settings: TrainStep, data: Path, run: Path, until: int, pace: Pace, files: SegmentFiles
) -> None:
    """Train to step `until`, from the newest state at or before it, and write the results.

    A step behind the chain's newest state is trained aside: the chain's states and logs stay.

    Raises:
        UserError: no valid state although there were some, no data, or a non-finite loss.
    """
    folder = run if newest_step(run / STATES) <= until else run / ASIDE / f"step-{until}"
    clips = training_clips(settings, data)
    engine = PlainEngine(settings.train.precision, settings.train.cpu_threads, gpu=pace.gpu)
    method = build_method(settings)
    engine.prepare(method)
    method.on_train_start()
    start = resume(method, until, [run / STATES, folder / STATES])
    crashed = ended_badly(folder)
    record_event(folder, "resume" if start else "start", step=start, until=until, crashed=crashed)
    means = _train(settings, data, clips, folder, Span(start, until), pace, method, engine)
    write_results(method, settings, files)
    write_json(files.done, {"step": until, "means": means, **_position(settings, clips, until)})
    record_event(folder, "finish", step=until)
    prune_states(folder / STATES)


def _train(
    settings: TrainStep,
    data: Path,
    clips: ClipDataset,
    folder: Path,
    span: Span,
    pace: Pace,
    method: FinetuneMethod,
    engine: PlainEngine,
) -> dict[str, float]:
    """Run the steps of `span`, saving rolling states and the segment's end."""
    val = ClipDataset(data, "val")
    batches = validation_batches(val, settings.validation.n, pace.micro_batch, engine.device)
    fixed = settings.validation

    def save(step: int) -> None:
        checkpoint = step == span.until
        save_state(folder / STATES, step, method.model, method.optimizer, checkpoint=checkpoint)
        prune_states(folder / STATES)

    segment = Segment(
        method,
        engine,
        Validation(batches, clips.table, fixed.timesteps, fixed.seed),
        Cadence(span.until, pace.save_every, pace.validate_every),
        settings.train.grad_clip,
        save,
    )
    micro_batches = MicroBatches(clips, schedule(settings, clips), pace.micro_batch, span)
    with RunLog(folder, span.start, span.until, pace.log_every) as log:
        return segment.run(read_ahead(micro_batches, pace.workers), span.start, log)


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
    config = wan_config(model.size, model.vocab, settings.text_dim, settings.text_length)
    optimizer = OptimizerConfig(train.lr, train.cond_lr, train.weight_decay, train.warmup_steps)
    start = starting_model(config, train.seed, model.init_dir, model.init_ckpt)
    return FinetuneMethod(start, seed=train.seed, optimizer=optimizer)


def resume(method: FinetuneMethod, until: int, roots: list[Path]) -> int:
    """Load the newest valid state at or before `until`; returns its step, 0 for none."""
    found = [state for root in roots if (state := newest_state(root, until))]
    if not found:
        return 0
    state = max(found, key=lambda state: state.step)
    load_state(state, method.model, method.optimizer)
    method.resume_schedules(state.step)
    logger.info("going on from %s", state.folder)
    return state.step


def write_results(method: FinetuneMethod, settings: TrainStep, files: SegmentFiles) -> None:
    """Write bf16 weights under their native names, and the prediction that they give."""
    weights = {n: p.detach().to("cpu", torch.bfloat16) for n, p in method.model.named_parameters()}
    device = next(method.model.parameters()).device
    config = wan_config(
        settings.model.size, settings.model.vocab, settings.text_dim, settings.text_length
    )
    frozen = model_from_tensors(config, weights, device)
    prediction = probe(frozen, settings.geometry, settings.text_length)
    write_tensors(files.probe, {"prediction": prediction}, {})
    write_tensors(files.weights, weights, {})


def _position(settings: TrainStep, clips: ClipDataset, until: int) -> dict[str, int]:
    """Where the data stands after `until` steps."""
    order = schedule(settings, clips)
    epoch, within = divmod(until, order.steps_per_epoch)
    return {"epoch": epoch, "step_in_epoch": within, "steps_per_epoch": order.steps_per_epoch}
