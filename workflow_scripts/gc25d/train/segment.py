"""Put one segment together: model, method, engine, data position, state; run it; write it out."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gc25d.dataset.order import Schedule
from gc25d.methods.base import TrainingMethod
from gc25d.methods.roles import STUDENT
from gc25d.records import write_json
from gc25d.settings.rates import RateChange, changes_up_to
from gc25d.settings.steps import TrainStep
from gc25d.train.ema import with_average
from gc25d.train.engine import Engine, SharedError
from gc25d.train.feed import MicroBatches, Span, read_ahead
from gc25d.train.history.chain import STATES, segment_folder
from gc25d.train.history.events import ended_badly, record_event
from gc25d.train.history.rates import RateResets, known_rates
from gc25d.train.loop import Cadence, Segment
from gc25d.train.outputs.logs import Log, NoLog, RunLog, validated
from gc25d.train.outputs.results import checkpoint_name, summary, write_probe, write_weights
from gc25d.train.pace import Pace
from gc25d.train.processes.signals import Preempted, Preemption
from gc25d.train.segment_data import fixed_validation, schedule, training_clips
from gc25d.train.segment_states import States, averaged_weights, from_first, resume
from gc25d.train.setup import build_engine, starting_method

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentFiles:
    """Where a segment's results go."""

    weights: Path
    probe: Path
    done: Path

    @property
    def ema(self) -> Path:
        """Beside the weights: their moving average."""
        return self.weights.with_name("ema.safetensors")

    @property
    def ema_probe(self) -> Path:
        """The prediction that the average gives."""
        return self.weights.with_name("ema_probe.safetensors")


@dataclass(frozen=True)
class Task:
    """What a segment is asked for."""

    until: int
    """The step to train to."""
    binding: str
    """Digest of the run's settings and data; states of another binding are refused."""


def train_segment(
    settings: TrainStep, data: Path, run: Path, task: Task, pace: Pace, files: SegmentFiles
) -> None:
    """Train to step `task.until`, from the newest state at or before it, and write the results.

    A step behind the chain's newest state is trained aside: the chain's states and logs stay. All
    processes of a job call this alike; the first one writes logs and results.

    Raises:
        UserError: no valid state although there were some, no data, or a non-finite loss.
        Preempted: asked to stop; the state is on disk.
    """
    with Preemption() as preemption:
        clips = training_clips(settings, data)
        order = schedule(settings, clips)
        engine = build_engine(settings, pace)
        from_first(engine, lambda: order.check_world_size(engine.world_size))
        folder = from_first(engine, lambda: segment_folder(run, task.until, task.binding))
        method = starting_method(settings, clips, engine, pace)
        roots = list(dict.fromkeys([run / STATES, folder / STATES]))
        start, states = prepared_states(method, engine, roots, task, settings.train.ema)
        rates = from_first(
            engine, lambda: known_rates(settings, run, pace.rates, start, aside=folder != run)
        )
        baseline = from_first(
            engine, lambda: is_due(start, [run, folder], len(settings.validation.timesteps))
        )
        if engine.rank == 0:
            record_start(folder, start, task, engine, method, rates)

        def asked_to_stop() -> bool:
            states.writer.check()
            return preemption.requested

        segment = Segment(
            method,
            engine,
            fixed_validation(settings, data, clips, pace, engine),
            Cadence(task.until, pace.save_every, pace.validate_every),
            settings.train.grad_clip,
            states.save,
            asked_to_stop,
            states.average,
            RateResets(method, rates),
            baseline,
            pace.compiled,
        )
        span = Span(start, task.until)
        feed = MicroBatches(clips, order, pace.micro_batch, span, engine.rank, engine.world_size)
        ahead = read_ahead(feed, pace.workers, prepare=method.draw_ahead, pin=pace.gpu)
        with (
            contextlib.closing(ahead),
            open_log(engine, folder, start, task, pace, baseline=baseline) as log,
        ):
            try:
                reached = segment.run(ahead, start, log)
            except SharedError:  # all processes stop here: the state before can be finished
                states.writer.wait()
                raise
        if reached == task.until:
            write_files(method, engine, settings, files)
        states.writer.wait()
        engine.barrier()
        if engine.rank == 0:
            if reached == task.until and settings.train.ema:
                write_average(roots, task, engine, settings, files)
            end_segment(folder, run, order, task, states.segment_start, files, reached, rates)
        engine.close()
        if reached < task.until:
            raise Preempted(f"stopped on request after step {reached}, whose state is saved")


def prepared_states(
    method: TrainingMethod, engine: Engine, roots: list[Path], task: Task, decay: float
) -> tuple[int, States]:
    """Load the newest state of `roots`; returns its step, and what saves into the last of them."""
    fragments, ema = with_average(engine.fragments(method), decay)
    start, began = resume(method, engine, fragments, roots, until=task.until, binding=task.binding)
    states = States(
        roots[-1],
        engine,
        fragments,
        ema,
        binding=task.binding,
        start=start,
        segment_start=began,
        until=task.until,
    )
    return start, states


@contextlib.contextmanager
def open_log(
    engine: Engine, folder: Path, start: int, task: Task, pace: Pace, *, baseline: bool
) -> Iterator[Log]:
    """The run's log on the first process, none on the others."""
    if engine.rank:
        yield NoLog()
        return
    with RunLog(folder, start, task.until, pace.log_every, baseline=baseline) as log:
        yield log


def is_due(start: int, folders: Sequence[Path], timesteps: int) -> bool:
    """Whether the validation before the first step is due: no attempt of the run has logged it."""
    return start == 0 and not any(validated(folder, 0, timesteps) for folder in folders)


def record_start(
    folder: Path,
    start: int,
    task: Task,
    engine: Engine,
    method: TrainingMethod,
    rates: Sequence[RateChange],
) -> None:
    """Tell the log and the history where this attempt starts and what it runs on."""
    logger.info(
        "engine %s, %d process(es), %s, %s attention",
        *(engine.name, engine.world_size, engine.device, method.attention_kind),
    )
    lr, cond_lr = rates[-1].rates
    record_event(
        folder,
        "resume" if start else "start",
        step=start,
        until=task.until,
        crashed=ended_badly(folder),
        engine=engine.name,
        processes=engine.world_size,
        attention=method.attention_kind,
        base_weights=method.inference_checkpoint_base_model_path(STUDENT),
        lr=lr,
        cond_lr=cond_lr,
    )


def write_files(
    method: TrainingMethod, engine: Engine, settings: TrainStep, files: SegmentFiles
) -> None:
    """Write the student's weights and the prediction that they give, on the first process."""
    weights = engine.full_weights(method, STUDENT)
    if weights is not None:
        write_probe(files.probe, weights, settings, engine.device)
        write_weights(files.weights, weights)


def write_average(
    roots: list[Path], task: Task, engine: Engine, settings: TrainStep, files: SegmentFiles
) -> None:
    """Write the moving average of the student's weights and the prediction that it gives."""
    weights = averaged_weights(roots, task.until)
    write_probe(files.ema_probe, weights, settings, engine.device)
    write_weights(files.ema, weights)


def end_segment(
    folder: Path,
    run: Path,
    order: Schedule,
    task: Task,
    segment_start: int,
    files: SegmentFiles,
    reached: int,
    rates: Sequence[RateChange],
) -> None:
    """Write done.json and the end of this attempt, once all states are whole."""
    if reached < task.until:
        record_event(folder, "stop", step=reached)
        return
    done = summary(
        order,
        [run, folder],
        until=task.until,
        resumed_from=checkpoint_name(run, segment_start),
        resumed_step=segment_start,
    )
    changes = changes_up_to(rates, task.until)
    write_json(files.done, {**done, "lr_changes": changes} if changes else done)
    record_event(folder, "finish", step=task.until)
