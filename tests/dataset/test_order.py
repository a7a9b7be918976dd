from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gc25d.dataset.order import Schedule, epoch_order
from gc25d.errors import UserError


def test_order_never_changes():
    assert epoch_order(0, 0, 8).tolist() == [0, 1, 3, 7, 5, 2, 6, 4]


def test_order_is_a_permutation_and_differs_by_epoch_and_seed():
    orders = [epoch_order(seed, epoch, 1000) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(1000))
    assert len({order.tobytes() for order in orders}) == 4


def test_every_place_is_equally_likely():
    """Clip 0's place over 2,000 epochs of 10: expected 200 a place, chi-square below its 99.9 %."""
    places = Counter(int(np.flatnonzero(epoch_order(0, e, 10) == 0)[0]) for e in range(2000))
    chi2 = sum((places[place] - 200) ** 2 / 200 for place in range(10))
    assert chi2 < 27.9


def test_the_full_set():
    schedule = Schedule(11_955, global_batch=16, grad_accum=2, seed=0)
    assert schedule.rounds == 1_494  # micro-batches of a rank: 8 ranks of one sample
    assert schedule.steps_per_epoch == 747
    assert 20_000 / schedule.steps_per_epoch == pytest.approx(26.8, abs=0.05)
    assert schedule.step(19_999).epoch == 26


def test_the_mini_set_ends_its_epoch_with_a_shorter_step():
    schedule = Schedule(100, global_batch=8, grad_accum=2, seed=0)
    assert (schedule.rounds, schedule.steps_per_epoch) == (25, 13)
    sizes = [len(schedule.step(s).indices) for s in range(13)]
    assert sizes == [8] * 12 + [4]
    assert schedule.step(13).epoch == 1


def test_samples_that_fill_no_round_are_left_out_of_their_epoch_only():
    schedule = Schedule(11, global_batch=4, grad_accum=1, seed=0)
    assert schedule.used == 8
    left = [set(range(11)) - {i for s in (0, 1) for i in schedule.step(2 * e + s).indices}
            for e in range(3)]  # fmt: skip
    assert all(len(out) == 3 for out in left)
    assert left[0] != left[1] or left[1] != left[2]


@given(
    n=st.integers(1, 200),
    grad_accum=st.integers(1, 4),
    round_size=st.integers(1, 8),
    seed=st.integers(0, 2**64),
)
def test_an_epoch_uses_each_sample_at_most_once(n, grad_accum, round_size, seed):
    if n < round_size:
        with pytest.raises(UserError, match="do not fill one round"):
            Schedule(n, round_size * grad_accum, grad_accum, seed)
        return
    schedule = Schedule(n, round_size * grad_accum, grad_accum, seed)
    for epoch in (0, 3):
        first = epoch * schedule.steps_per_epoch
        steps = [schedule.step(first + s) for s in range(schedule.steps_per_epoch)]
        used = [index for step in steps for index in step.indices]
        assert {step.epoch for step in steps} == {epoch}
        assert used == epoch_order(seed, epoch, n)[: len(used)].tolist()
        assert n - round_size < len(used) <= n
        assert len(used) % round_size == 0
        assert all(len(step.indices) == round_size * grad_accum for step in steps[:-1])
        assert [len(step.indices) for step in steps] == [
            schedule.step_size(first + s) for s in range(len(steps))
        ]


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 3), (0, 1), (4, 0)])
def test_a_batch_that_does_not_divide_is_refused(batch, accumulation):
    with pytest.raises(UserError, match="multiple of grad_accum"):
        Schedule(100, batch, accumulation, 0)


def test_steps_before_the_first_are_refused():
    with pytest.raises(ValueError, match="step is -1"):
        Schedule(8, 4, 1, 0).step(-1)
