"""What a segment reads: the training split, its order, and the fixed validation clips."""

from pathlib import Path

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule
from gc25d.settings.steps import TrainStep
from gc25d.train.engine import Engine
from gc25d.train.pace import Pace
from gc25d.train.validate import Validation, validation_batches


def fixed_validation(
    settings: TrainStep, data: Path, clips: ClipDataset, pace: Pace, engine: Engine
) -> Validation:
    """The run's validation clips, timesteps and noise; this process's part of the clips."""
    fixed = settings.validation
    batches = validation_batches(
        ClipDataset(data, "val"),
        fixed.n,
        pace.micro_batch,
        engine.device,
        engine.rank,
        engine.world_size,
    )
    return Validation(batches, clips.table, fixed.timesteps, fixed.seed, engine.gather)


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
