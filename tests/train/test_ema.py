"""The moving average of the weights: by hand, and exact through any number of processes."""

import itertools
from pathlib import Path

import pytest
import torch

from gc25d.train.ema import Ema
from gc25d.train.states.folder import newest_state
from gc25d.train.states.fragments import Fragment
from gc25d.train.states.reader import load_state
from gc25d.train.states.writer import StateWriter

NAME = "student/a:weight"


def fragment(values: torch.Tensor, start: int, stop: int) -> Fragment:
    return Fragment(NAME, tuple(values.shape), start, values[start:stop])


def test_the_average_follows_its_formula_by_hand() -> None:
    weights = torch.tensor([8.0, 0.0])
    moment = Fragment("student/a:exp_avg", (2,), 0, torch.ones(2))
    ema = Ema([fragment(weights, 0, 2), moment], 0.75)
    seen = []
    for new in ([0.0, 4.0], [0.0, 4.0], [16.0, 0.0]):
        weights.copy_(torch.tensor(new))
        ema.update()
        seen.append(ema.fragments()[0].values.tolist())
    # 0.75·8 = 6; 0.75·6 = 4.5; 0.75·4.5 + 0.25·16 = 7.375 / 0.25·4 = 1; 0.75 + 1; 0.75·1.75.
    assert seen == [[6.0, 1.0], [4.5, 1.75], [7.375, 1.3125]]
    (average,) = ema.fragments()
    assert (average.name, average.shape, average.start) == ("student/a:ema", (2,), 0)


def test_no_decay_is_the_weights_themselves() -> None:
    weights = torch.tensor([1.0, 2.0])
    ema = Ema([fragment(weights, 0, 2)], 0.0)
    weights.copy_(torch.tensor([3.0, -5.0]))
    ema.update()
    assert ema.fragments()[0].values.tolist() == [3.0, -5.0]


@pytest.mark.parametrize("edges", [(0, 6), (0, 2, 6), (0, 1, 4, 6)])
def test_an_average_goes_on_exactly_on_another_number_of_processes(
    tmp_path: Path, edges: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    course = torch.randn(8, 6, generator=generator)

    def follow(weights: torch.Tensor, emas: list[Ema], steps: range) -> None:
        for step in steps:
            weights.copy_(course[step])
            for ema in emas:
                ema.update()

    weights = course[0].clone()
    uninterrupted = Ema([fragment(weights, 0, 6)], 0.9)
    follow(weights, [uninterrupted], range(1, 5))
    writer = StateWriter(tmp_path)
    share = [fragment(weights, 0, 6), *uninterrupted.fragments()]
    writer.save(4, share, binding="b", checkpoint=False)
    follow(weights, [uninterrupted], range(5, 8))
    writer.wait()

    # As at a start: the averages begin with other weights, the state then says what they are.
    resumed = torch.zeros(6)
    pieces = [fragment(resumed, a, b) for a, b in itertools.pairwise(edges)]
    emas = [Ema([piece], 0.9) for piece in pieces]
    state = newest_state([tmp_path], 9, "b")
    assert state is not None
    shapes = {NAME: (6,), "student/a:ema": (6,)}
    for piece, ema in zip(pieces, emas, strict=True):
        load_state(state, [piece, *ema.fragments()], shapes)
    follow(resumed, emas, range(5, 8))
    went_on = torch.cat([ema.fragments()[0].values for ema in emas])
    assert went_on.tolist() == uninterrupted.fragments()[0].values.tolist()
