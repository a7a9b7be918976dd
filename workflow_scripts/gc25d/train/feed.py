"""Micro-batches in training order, read ahead by any number of workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset

from gc25d.dataset.batch import Batch, collate
from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule


@dataclass(frozen=True)
class MicroBatch:
    """A part of an optimizer step."""

    step: int
    """0-based optimizer step."""
    epoch: int
    share: float
    """Samples of this micro-batch over the step's."""
    last: bool
    """The step's last micro-batch."""
    batch: Batch


@dataclass(frozen=True)
class Span:
    """Optimizer steps of a segment: those after `start`, up to and with `until` (1-based)."""

    start: int
    until: int


class MicroBatches(Dataset[MicroBatch]):
    """The micro-batches of a span of optimizer steps, as a map over their numbers.

    Which samples stand where is arithmetic, and each sample's draws depend on (seed, epoch, index)
    alone: workers change nothing.
    """

    def __init__(
        self,
        clips: ClipDataset,
        schedule: Schedule,
        micro_batch: int,
        span: Span,
    ) -> None:
        self.clips, self.schedule = clips, schedule
        self.places = [
            (step, offset)
            for step in range(span.start, span.until)
            for offset in range(0, schedule.step_size(step), micro_batch)
        ]
        self.micro_batch = micro_batch

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> MicroBatch:
        step, offset = self.places[number]
        samples = self.schedule.step(step)
        chosen = samples.indices[offset : offset + self.micro_batch]
        batch = collate([self.clips.sample(samples.epoch, i) for i in chosen], self.clips.table)
        total = len(samples.indices)
        return MicroBatch(
            step, samples.epoch, len(chosen) / total, offset + len(chosen) == total, batch
        )


def read_ahead(micro_batches: MicroBatches, workers: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches in order, read by `workers` processes (0: by this one)."""
    loader = DataLoader(
        micro_batches,
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        collate_fn=_as_is,
        prefetch_factor=4 if workers else None,
    )
    return iter(loader)


def _as_is(item: Any) -> Any:
    return item
