"""How many steps an epoch has, and which micro-batch of a process ends a step."""

from pathlib import Path

from gc25d.dataset.clips import ClipDataset
from gc25d.dataset.order import Schedule
from gc25d.train.feed import MicroBatches, Span


def test_the_tail_of_an_epoch_is_a_step() -> None:
    """100 clips on 4 processes in 2 rounds: 25 micro-batches each, 12 pairs and a last one."""
    order = Schedule(100, global_batch=8, grad_accum=2, seed=0)
    assert order.steps_per_epoch == 13
    shares = [[order.share(step, rank, 4) for step in range(13)] for rank in range(4)]
    assert [[len(part) for part in own] for own in shares] == [[2] * 12 + [1]] * 4
    used = [index for own in shares for part in own for index in part]
    assert sorted(used) == list(range(100))


def test_each_process_ends_a_step_at_its_last_micro_batch(small_dataset: Path) -> None:
    """10 clips on 2 processes in 2 rounds: two micro-batches, two, and one; then epoch 1."""
    clips = ClipDataset(small_dataset, "train", 0)
    order = Schedule(len(clips), global_batch=4, grad_accum=2, seed=0)
    for rank in range(2):
        feed = MicroBatches(clips, order, 1, Span(0, 4), rank, 2)
        parts = [feed[number] for number in range(len(feed))]
        assert [part.step for part in parts] == [0, 0, 1, 1, 2, 3, 3]
        assert [part.last for part in parts] == [False, True, False, True, True, False, True]
        assert [part.share for part in parts] == [0.25] * 4 + [0.5] + [0.25] * 2
        assert [part.epoch for part in parts] == [0] * 5 + [1] * 2
