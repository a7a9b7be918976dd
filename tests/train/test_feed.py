"""Micro-batches of one or several processes, and threads that read them ahead."""

import dataclasses
import itertools
import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule
from gc25d.errors import UserError
from gc25d.prep.store import digest_tensor
from gc25d.train.feed import MicroBatch, MicroBatches, Span, read_ahead


@pytest.fixture
def clips(small_dataset: Path) -> ClipDataset:
    """Ten clips of 9 × 64 × 64, half of them masked."""
    return ClipDataset(small_dataset, "train", text_dropout=0.3, cond_dropout=0.2, mask_p=0.5)


# Five rounds of two: steps of 4, 4 and 2 samples.
SCHEDULE = Schedule(10, global_batch=4, grad_accum=2, seed=1)


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def content(part: MicroBatch) -> tuple[object, ...]:
    """All that a micro-batch holds, tensors as their bytes."""
    batch = [getattr(part.batch, field.name) for field in dataclasses.fields(part.batch)]
    tensors = [value for value in batch if isinstance(value, torch.Tensor)]
    others = [value for value in batch if not isinstance(value, torch.Tensor)]
    digests = [digest_tensor(tensor) for tensor in tensors]
    return part.step, part.epoch, part.share, part.last, digests, others


def test_one_process_takes_each_step_in_its_order(clips):
    fed = list(read_ahead(MicroBatches(clips, SCHEDULE, 3, Span(1, 4)), 0))
    # Step 1 has 4 samples, step 2 the epoch's last 2, step 3 is the next epoch's first.
    assert [(part.step, part.epoch, len(part.batch)) for part in fed] == [
        (1, 0, 3), (1, 0, 1), (2, 0, 2), (3, 1, 3), (3, 1, 1),
    ]  # fmt: skip
    assert [part.share for part in fed] == [0.75, 0.25, 1.0, 0.75, 0.25]
    assert [part.last for part in fed] == [False, True, True, False, True]
    assert tuple(fed[0].batch.indices + fed[1].batch.indices) == SCHEDULE.step(1).indices


def test_two_processes_have_equal_micro_batches_that_make_up_each_step(clips):
    ranks = [
        list(read_ahead(MicroBatches(clips, SCHEDULE, 2, Span(0, 4), rank, 2), 0))
        for rank in (0, 1)
    ]
    for parts in zip(*ranks, strict=True):
        assert len({(p.step, p.epoch, len(p.batch), p.share, p.last) for p in parts}) == 1
    assert [(part.step, part.share, part.last) for part in ranks[0]] == [
        (0, 0.5, True), (1, 0.5, True), (2, 0.5, True), (3, 0.5, True),
    ]  # fmt: skip
    assert [len(part.batch) for part in ranks[0]] == [2, 2, 1, 2]
    # Rounds of two: the processes take turns, sample by sample.
    assert ranks[0][1].batch.indices == list(SCHEDULE.step(1).indices[0::2])
    assert ranks[1][1].batch.indices == list(SCHEDULE.step(1).indices[1::2])


def test_processes_see_the_samples_that_one_process_sees(clips):
    alone = {
        p.batch.indices[0]: p for p in read_ahead(MicroBatches(clips, SCHEDULE, 1, Span(0, 3)), 0)
    }
    for rank in (0, 1):
        for part in read_ahead(MicroBatches(clips, SCHEDULE, 1, Span(0, 3), rank, 2), 0):
            single = alone.pop(part.batch.indices[0])
            assert (part.step, part.share) == (single.step, single.share)
            assert torch.equal(part.batch.sem_ids, single.batch.sem_ids)
            assert part.batch.dropped == single.batch.dropped
    assert not alone  # an epoch uses all ten


def test_processes_that_do_not_divide_a_step_are_refused_at_once(clips):
    with pytest.raises(UserError, match=r"^4 processes .*: use 1, 2$"):  # the last step has two
        MicroBatches(clips, SCHEDULE, 1, Span(0, 1), 0, 4)


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_threads_change_nothing(clips, workers):
    micro_batches = MicroBatches(clips, SCHEDULE, 1, Span(0, 6))
    plain, threaded = read_ahead(micro_batches, 0), read_ahead(micro_batches, workers)
    pairs = list(zip(plain, threaded, strict=True))
    assert len(pairs) == 20
    assert all(content(one) == content(other) for one, other in pairs)
    assert not reading_threads()


class Watched(MicroBatches):
    """Counts what was read."""

    count = 0

    def __getitem__(self, number: int) -> MicroBatch:
        self.count += 1
        return super().__getitem__(number)


def test_reading_stays_a_few_micro_batches_ahead_and_ends_with_the_consumer(clips):
    micro_batches = Watched(clips, SCHEDULE, 1, Span(0, 300))
    fed = read_ahead(micro_batches, 2)
    for _ in range(5):
        next(fed)
    deadline = time.monotonic() + 20
    while micro_batches.count < 9 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert micro_batches.count == 9  # the five taken and two for each thread
    assert len(reading_threads()) == 2
    fed.close()
    assert not reading_threads()
    assert micro_batches.count == 9


def test_a_damaged_clip_is_an_error_in_its_place(small_dataset, tmp_path):
    root = Path(shutil.copytree(small_dataset, tmp_path / "data"))
    index = root / "index/clips.jsonl"
    rows = [json.loads(line) for line in index.read_text().splitlines()]
    damaged = sorted(row["clip_id"] for row in rows if row["split"] == "train")[
        SCHEDULE.step(1).indices[2]
    ]
    for row in rows:
        if row["clip_id"] == damaged:
            row["digests"]["ids"] = "0" * 64
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fed = read_ahead(MicroBatches(ClipDataset(root, "train"), SCHEDULE, 1, Span(0, 6)), 3)
    assert len(list(itertools.islice(fed, 6))) == 6  # the four of step 0 and two of step 1
    with pytest.raises(UserError, match=f"clip {damaged} is damaged"):
        next(fed)
    assert not reading_threads()
