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


def test_processes_take_slices_of_every_round():
    """Order of 8: 0 1 | 3 7 and 5 2 | 6 4, a bar between the rounds of each step."""
    schedule = Schedule(8, global_batch=4, grad_accum=2, seed=0)
    assert [schedule.share(0, rank, 2) for rank in (0, 1)] == [(0, 3), (1, 7)]
    assert [schedule.share(1, rank, 2) for rank in (0, 1)] == [(5, 6), (2, 4)]
    assert schedule.share(1, 0, 1) == (5, 2, 6, 4)


def test_more_processes_than_samples_in_a_round_share_the_whole_step():
    schedule = Schedule(8, global_batch=4, grad_accum=2, seed=0)
    assert [schedule.share(0, rank, 4) for rank in range(4)] == [(0,), (1,), (3,), (7,)]


def test_a_long_round_is_cut_into_contiguous_slices():
    """One round of 8 samples a step, 0 1 3 7 5 2 6 4."""
    schedule = Schedule(8, global_batch=8, grad_accum=1, seed=0)
    assert [schedule.share(0, rank, 2) for rank in (0, 1)] == [(0, 1, 3, 7), (5, 2, 6, 4)]


def test_four_processes_on_the_mini_set():
    schedule = Schedule(100, global_batch=8, grad_accum=2, seed=3)
    order = epoch_order(3, 1, 100).tolist()
    taken = [[schedule.share(13 + s, rank, 4) for s in range(13)] for rank in range(4)]
    for rank in range(4):
        assert [len(share) for share in taken[rank]] == [2] * 12 + [1]  # 25 micro-batches of one
        assert taken[rank][0] == (order[rank], order[4 + rank])
        assert taken[rank][11] == (order[88 + rank], order[92 + rank])
        assert taken[rank][12] == (order[96 + rank],)


def test_eight_processes_on_the_full_set():
    schedule = Schedule(11_955, global_batch=16, grad_accum=2, seed=0)
    sizes = [len(schedule.share(s, 7, 8)) for s in range(747)]
    assert sizes == [2] * 747
    assert sum(sizes) == 1_494
    assert schedule.legal_world_sizes == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("n", "legal"),
    [
        (12, (1, 2, 4)),  # 3 rounds of 4: the second step has 4 samples, not 8
        (16, (1, 2, 4, 8)),  # 4 rounds: every step has 8
        (23, (1, 2, 4)),  # 5 rounds, 3 samples left out
    ],
)
def test_legal_numbers_of_processes_divide_the_last_step_too(n, legal):
    assert Schedule(n, global_batch=8, grad_accum=2, seed=0).legal_world_sizes == legal


def test_rounds_of_an_odd_size_are_shared_as_a_step_by_an_even_number():
    """Rounds of 3, steps of 6: two processes take three samples each, three take one a round."""
    schedule = Schedule(12, global_batch=6, grad_accum=2, seed=5)
    order = epoch_order(5, 0, 12).tolist()
    assert schedule.legal_world_sizes == (1, 2, 3, 6)
    assert schedule.share(1, 1, 2) == (order[9], order[10], order[11])
    assert schedule.share(1, 1, 3) == (order[7], order[10])


def test_another_number_of_processes_is_refused():
    schedule = Schedule(100, global_batch=8, grad_accum=2, seed=0)
    with pytest.raises(UserError, match=r"^8 processes .*batch 8 in rounds of 4 .*use 1, 2, 4$"):
        schedule.share(0, 0, 8)
    with pytest.raises(ValueError, match=r"rank is 4, expected 0\.\.3"):
        schedule.share(0, 4, 4)


@given(
    rounds=st.integers(1, 30),
    grad_accum=st.integers(1, 4),
    round_size=st.integers(1, 8),
    data=st.data(),
)
def test_any_legal_number_of_processes_forms_the_same_steps(rounds, grad_accum, round_size, data):
    schedule = Schedule(rounds * round_size, round_size * grad_accum, grad_accum, 0)
    world_size = data.draw(st.sampled_from(schedule.legal_world_sizes))
    step = data.draw(st.integers(0, 2 * schedule.steps_per_epoch))
    shares = [schedule.share(step, rank, world_size) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    together = sorted(index for share in shares for index in share)
    assert together == sorted(schedule.step(step).indices)


def test_an_order_is_shared_and_cannot_be_changed():
    assert epoch_order(0, 0, 50) is epoch_order(0, 0, 50)
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(0, 0, 50)[0] = 1
