"""Normal numbers: a function of their place, normally distributed, and independent."""

import pytest
import scipy.stats
import torch

from spiritlevel.math import signs
from spiritlevel.math.signs import random_normals, random_signs

COUNT = 20_000
FALSE_ALARM = 1e-4  # of each statistical test here, were its seed not fixed


def drawn(seed=0, stream=0, rows=range(1), count=COUNT, dtype=torch.float64):
    return random_normals(seed, stream, torch.tensor(list(rows)), count, dtype)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1])
def test_they_are_normal(seed):
    numbers = drawn(seed)[0].numpy()
    assert scipy.stats.kstest(numbers, "norm").pvalue > FALSE_ALARM
    # the tails, which that test hardly sees
    assert scipy.stats.kurtosistest(numbers).pvalue > FALSE_ALARM
    assert scipy.stats.skewtest(numbers).pvalue > FALSE_ALARM


def test_they_depend_on_nothing_but_their_place(monkeypatch):
    whole = drawn(rows=[3, 8, 5], count=1000)
    assert torch.equal(drawn(rows=[5], count=1000)[0], whole[2])
    assert torch.equal(drawn(rows=[3, 8], count=300), whole[:2, :300])
    monkeypatch.setattr(signs, "_CHUNK", 64)  # made in many parts
    assert torch.equal(drawn(rows=[3, 8, 5], count=1000), whole)
    torch.testing.assert_close(
        drawn(rows=[3, 8, 5], count=1000, dtype=torch.float32), whole.float(), rtol=0, atol=0
    )


def test_places_seeds_and_streams_are_independent():
    first = drawn()[0]
    others = [drawn(seed=1)[0], drawn(stream=1)[0], drawn(rows=[1])[0], first.roll(1)]
    others.append(random_signs(0, 0, torch.tensor([0]), COUNT, torch.float64)[0])
    for other in others:
        correlation = float(first @ other / COUNT)
        assert abs(correlation) < 4 / COUNT**0.5


def test_they_are_finite_and_some_are_large():
    numbers = drawn(rows=range(50))
    assert bool(torch.isfinite(numbers).all())
    assert 4.0 < float(numbers.abs().max()) < 6.7  # the logarithm of 2⁻³³ gives 6.76
