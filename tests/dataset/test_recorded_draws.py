"""What a recorded run drew of its samples, order and masks: pinned, and worked out by hand."""

import numpy as np
import pytest
from scipy import stats

from gc25d.dataset.clips import Rates
from gc25d.dataset.order import epoch_order

RATES = Rates(0.1, 0.05, 0.5)
N = 6000


def test_a_samples_draws_are_pinned():
    """Recorded values: another name, order or formula of the draws would change every run."""
    drawn = [Rates(0.5, 0.3, 0.7).draw(5, 3, index) for index in range(6)]
    assert [(draw.text, draw.cond) for draw in drawn] == [
        *((True, False), (False, False), (False, True), (False, False), (False, True)),
        (False, True),
    ]
    planes = [(plane.theta, plane.quantile) for draw in drawn for plane in draw.planes]
    expected = [
        (5.585019929999626, 0.07756549770436572),
        (0.2771707259953361, 0.12983783358055273),
        (3.7793432417503388, 0.15527068076731845),
        (5.618201972734599, 0.35058702823355764),
    ]
    np.testing.assert_allclose(planes, expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("seed", "epoch", "index"), [(0, 0, 0), (5, 3, 7), (5, 7, 3), (9, 26, 411)]
)
def test_a_samples_draws_are_the_documented_ones(entropy_by_hand, seed, epoch, index):
    """Uniforms of numpy's own conversion: text, condition, mask, then the mask's planes."""
    stream = np.random.Generator(np.random.Philox(entropy_by_hand(seed, "sample", epoch, index)))
    text, cond, mask, number, *of_planes = stream.random(8)
    always = Rates(0.5, 0.0, 1.0).draw(seed, epoch, index)
    assert always.text == (text < 0.5)
    assert Rates(0.0, 0.5, 0.5).draw(seed, epoch, index).cond == (cond < 0.5)
    assert bool(Rates(0.0, 0.0, 0.5).draw(seed, epoch, index).planes) == (mask < 0.5)
    expected = [
        (2 * np.pi * theta, 0.05 + 0.35 * quantile)
        for theta, quantile in (of_planes[:2], of_planes[2:])
    ]
    drawn = [(plane.theta, plane.quantile) for plane in always.planes]
    np.testing.assert_allclose(drawn, expected[: 1 if number < 0.7 else 2], rtol=1e-14)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (7, 3)])
def test_an_epochs_order_is_the_documented_one(entropy_by_hand, seed, epoch):
    words = np.random.Philox(entropy_by_hand(seed, "order", epoch)).random_raw(50)
    assert epoch_order(seed, epoch, 50).tolist() == sorted(range(50), key=lambda i: words[i])


def test_planes_of_masks_that_were_drawn_are_free_of_the_dropouts():
    """A plane made of a dropout's uniform would know that a mask was drawn (that one was < 0.5),
    that no condition was dropped, or whether the text was. Rates within 4 standard errors."""
    drawn = [RATES.draw(1, epoch, i) for epoch in range(3) for i in range(N // 3)]
    masked = [draw for draw in drawn if draw.planes]
    assert 0.4 * N < len(masked) < 0.55 * N
    text = np.array([draw.text for draw in masked])
    two = np.array([len(draw.planes) == 2 for draw in masked])
    error = 1 / np.sqrt(len(masked))
    assert abs(two.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7) * error
    assert abs(np.corrcoef(text, two)[0, 1]) < 4 * error
    for place, chosen in ((0, np.full(len(masked), True)), (1, two)):
        planes = [draw.planes[place] for draw, held in zip(masked, chosen, strict=True) if held]
        theta = np.array([plane.theta for plane in planes])
        quantile = np.array([plane.quantile for plane in planes])
        assert stats.kstest(theta, stats.uniform(0, 2 * np.pi).cdf).pvalue > 0.001
        assert stats.kstest(quantile, stats.uniform(0.05, 0.35).cdf).pvalue > 0.001
        for values in (theta, quantile):
            assert abs(np.corrcoef(text[chosen], values)[0, 1]) < 4 / np.sqrt(len(planes))
