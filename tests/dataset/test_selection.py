"""The selection against a full stable sort."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from gc25d.dataset.selection import furthest, weighted_quantile


def by_sorting(distance, weights, share):
    """Take cells by falling distance, first come first served, while they fit."""
    present = np.flatnonzero(weights)
    allowed = share * weights.sum()
    kept, total = np.zeros(weights.shape, bool), 0
    for cell in sorted(present.tolist(), key=lambda cell: -distance.flat[cell]):
        total += int(weights.flat[cell])
        if total > allowed:
            break
        kept.flat[cell] = True
    return kept


def test_by_hand():
    distance = np.array([[5.0, 1.0, 3.0], [3.0, np.nan, 4.0]])
    weights = np.array([[2, 9, 3], [3, 0, 2]], np.uint8)  # 19 in all
    # From afar: 5 (2), 4 (4), the first 3 (7), the other 3 (10), 1 (19).
    for share, expected in (
        (0.0, []), (2.5 / 19, [0]), (4 / 19, [0, 5]), (9 / 19, [0, 2, 5]),
        (18 / 19, [0, 2, 3, 5]), (1.0, [0, 1, 2, 3, 5]),
    ):  # fmt: skip
        assert np.flatnonzero(furthest(distance, weights, share)).tolist() == expected


shapes = nps.array_shapes(min_dims=2, max_dims=2, max_side=12)
few = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-40, -3.0, 1e-300, 1e9, np.inf, -np.inf])


@given(shape=shapes, share=st.floats(0, 1), data=st.data())
def test_equals_a_stable_sort(shape, share, data):
    """Ties, signs, infinities and distances of any magnitude included."""
    values = few if data.draw(st.booleans()) else st.floats(allow_nan=False)
    distance = data.draw(nps.arrays(np.float64, shape, elements=values))
    weights = data.draw(nps.arrays(np.uint8, shape, elements=st.integers(0, 16)))
    assume(weights.any())
    expected = by_sorting(distance, weights, share)
    assert np.array_equal(furthest(distance, weights, share), expected)


@pytest.mark.parametrize("kind", ["sky", "ground"])
def test_equals_a_stable_sort_at_full_size(kind):
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:120, 0:208]
    distance = (60.0 - rows) * 1e-3 if kind == "sky" else 1e4 * (columns + 0.5) / (rows + 1.0) - 3e3
    weights = rng.integers(0, 17, (120, 208)).astype(np.uint8)
    weights[rng.random((120, 208)) < 0.3] = 0
    for share in (0.1, 0.5, 0.99):
        found = furthest(distance, weights, share)
        assert np.array_equal(found, by_sorting(distance, weights, share))


@given(data=st.data(), q=st.floats(0, 1), size=st.integers(1, 300))
def test_the_weighted_quantile_is_that_of_repeated_values(data, q, size):
    """Ties and single values included; to the bit."""
    few = st.sampled_from([0.0, 1.0, 1.0 + 2**-40, -3.0, 1e-300, 1e9])
    elements = few if data.draw(st.booleans()) else st.floats(-1e12, 1e12)
    values = data.draw(nps.arrays(np.float64, size, elements=elements))
    weights = data.draw(nps.arrays(np.uint8, size, elements=st.integers(1, 16)))
    expected = np.quantile(np.repeat(values, weights), q)
    assert weighted_quantile(values, weights, q) == expected


@pytest.mark.parametrize("order", ["rising", "shuffled", "heavy at one end"])
def test_the_weighted_quantile_at_full_size(order):
    """Where weights follow the values, the quantile lies far from that of the cells."""
    rng = np.random.default_rng(0)
    values = np.sort(1e4 / (rng.random(25_000) + 1e-6))
    weights = rng.integers(1, 17, len(values)).astype(np.uint8)
    if order == "heavy at one end":
        weights[: len(values) // 2] = 1
        weights[len(values) // 2 :] = 16
    elif order == "shuffled":
        rng.shuffle(values)
    for q in (0.0, 0.3, 0.6, 0.8, 0.95, 1.0):
        expected = np.quantile(np.repeat(values, weights), q)
        assert weighted_quantile(values, weights, q) == expected
