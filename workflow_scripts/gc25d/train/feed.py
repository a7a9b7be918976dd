"""Micro-batches in training order, read ahead by any number of threads."""

import itertools
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gc25d.dataset.batch import Batch, collate
from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule

_AHEAD = 2
"""Micro-batches of each thread that are read or being read."""


@dataclass(frozen=True)
class MicroBatch:
    """A part of an optimizer step, as one process sees it."""

    step: int
    """0-based optimizer step."""
    epoch: int
    share: float
    """Samples of this micro-batch over those of the whole step, all processes' together."""
    last: bool
    """This process's last micro-batch of the step."""
    batch: Batch


@dataclass(frozen=True)
class Span:
    """Optimizer steps of a segment: those after `start`, up to and with `until` (1-based)."""

    start: int
    until: int


class MicroBatches:
    """The micro-batches that one process takes of a span of optimizer steps, by their number.

    Which samples stand where is arithmetic, and each sample's draws depend on (seed, epoch, index)
    alone: who reads them changes nothing. In a step every process has as many micro-batches, of
    the same sizes.
    """

    def __init__(
        self,
        clips: ClipDataset,
        schedule: Schedule,
        micro_batch: int,
        span: Span,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Process `rank` of `world_size` takes at most `micro_batch` samples at a time.

        Raises:
            UserError: the steps do not divide among `world_size` processes.
        """
        schedule.check_world_size(world_size)
        self.clips, self.schedule, self.micro_batch = clips, schedule, micro_batch
        self.rank, self.world_size = rank, world_size
        self.places = [
            (step, offset)
            for step in range(span.start, span.until)
            for offset in range(0, schedule.step_size(step) // world_size, micro_batch)
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> MicroBatch:
        step, offset = self.places[number]
        share = self.schedule.share(step, self.rank, self.world_size)
        epoch = self.schedule.epoch(step)
        chosen = share[offset : offset + self.micro_batch]
        batch = collate([self.clips.sample(epoch, i) for i in chosen], self.clips.table)
        return MicroBatch(
            step,
            epoch,
            share=len(chosen) / self.schedule.step_size(step),
            last=offset + len(chosen) == len(share),
            batch=batch,
        )


def read_ahead(
    micro_batches: MicroBatches,
    workers: int,
    *,
    prepare: Callable[[Batch], Batch] | None = None,
    pin: bool = False,
) -> Generator[MicroBatch, None, None]:
    """Yield the micro-batches in order, read ahead by `workers` threads (0: none, by the caller).

    Threads suffice, as unpacking, digests and masks run outside the interpreter's lock, and spare
    the 32 MB of ids a sample that processes would pass on. An error is raised where its micro-batch
    would have come. Closing the iterator ends the threads.

    Args:
        micro_batches: what to read.
        workers: threads; each has at most `_AHEAD` micro-batches read or being read.
        prepare: what else a thread does with a batch, such as a method's `draw_ahead`.
        pin: read into page-locked memory, from which a GPU copies while it computes.
    """

    def read(number: int) -> MicroBatch:
        found = micro_batches[number]
        batch = prepare(found.batch) if prepare else found.batch
        return replace(found, batch=batch.pin_memory() if pin else batch)

    if not workers:
        yield from map(read, range(len(micro_batches)))
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read-ahead")
    try:
        numbers = iter(range(len(micro_batches)))
        waiting = deque(pool.submit(read, n) for n in itertools.islice(numbers, workers * _AHEAD))
        while waiting:
            found = waiting.popleft().result()
            waiting.extend(pool.submit(read, n) for n in itertools.islice(numbers, 1))
            yield found
    finally:
        pool.shutdown(cancel_futures=True)
