import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from gc25d.dataset.draws import generator, torch_seed, uniforms


def test_values_never_change():
    """A change of these would make every recorded run irreproducible."""
    words = generator(0, "sample", 1, 2).bit_generator.random_raw(2)
    assert words.tolist() == [14394705000124918979, 17310507064049102180]
    assert torch_seed(0, "noise", 1, 2) == 3059729832225042286


def test_uniforms_are_numpys_doubles():
    """numpy's own conversion of Philox words is the peer."""
    ours = uniforms(3, "sample", 4, 5, count=100)
    assert np.array_equal(ours, generator(3, "sample", 4, 5).random(100))


def test_uniforms_are_uniform():
    values = np.concatenate([uniforms(0, "sample", 0, i, count=8) for i in range(500)])
    assert stats.kstest(values, "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((0, "a", 1), (0, "a", 2)),
        ((0, "a", 1), (1, "a", 1)),
        ((0, "a", 1), (0, "b", 1)),
        ((0, "a", 1), (0, "a", 1, 0)),
        ((0, "a", 1, 2), (0, "a", 12)),
        ((0, "a", 1, 2), (0, "a", 2, 1)),
        ((0, "a/1"), (0, "a", 1)),
        ((0, "a", 2**32), (0, "a", 0, 1)),
        ((0, "a", -1), (0, "a", 1)),
    ],
)
def test_every_part_of_the_name_counts(left, right):
    assert torch_seed(*left) != torch_seed(*right)
    assert not np.array_equal(uniforms(*left, count=4), uniforms(*right, count=4))


def test_neighbouring_streams_are_uncorrelated():
    """Correlation over 5,000 pairs has a standard error of 0.014; the bound is 4 of them."""
    first = np.array([uniforms(7, "sample", 0, i, count=1)[0] for i in range(5000)])
    for other in (
        [uniforms(7, "sample", 1, i, count=1)[0] for i in range(5000)],
        [uniforms(7, "sample", 0, i + 1, count=1)[0] for i in range(5000)],
        [uniforms(7, "order", 0, i, count=1)[0] for i in range(5000)],
    ):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.057


def test_torch_seeds_are_accepted_and_distinct():
    seeds = [torch_seed(*key, "noise", i) for key in ((0,), (2**40,)) for i in range(200)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    draws = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in seeds[:5]]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))


def test_numpy_integers_name_the_same_stream():
    assert torch_seed(0, "noise", 5) == torch_seed(np.int64(0), "noise", np.int32(5))
