"""Lengths under a kernel, against scipy's distributions."""

import pytest
import torch
from scipy import stats

from spiritlevel.math.feature_matrices import Radius

DRAWS = 20_000


def drawn(kernel, dimension):
    return Radius(kernel, dimension).draw(DRAWS, torch.Generator().manual_seed(5)).numpy()


@pytest.mark.parametrize(
    ("dimension", "deviation"), [(1, 0.5), (3, 0.3), (84, 0.05), (84, 1.0), (100_000, 0.003)]
)
def test_a_normal_that_is_cut_off(dimension, deviation):
    """|z| of a normal is a chi variable; cut off, one that is known to be below 1."""
    lengths, chi = drawn(deviation, dimension), stats.chi(dimension, scale=deviation)
    inside = chi.cdf(1.0)
    assert stats.kstest(lengths, lambda r: chi.cdf(r) / inside).pvalue > 1e-4
    # E[r²; r < 1] = mσ² P(a chi variable of m + 2 dimensions < 1)
    mean = dimension * deviation**2 * stats.chi(dimension + 2, scale=deviation).cdf(1.0) / inside
    # the grid of the distribution function leaves 1e-7
    assert Radius(deviation, dimension).mean_square == pytest.approx(mean, rel=1e-6)


def test_uniform_in_the_ball():
    assert stats.kstest(drawn("ball", 5), lambda r: r**5).pvalue > 1e-4
    assert Radius("ball", 5).mean_square == 5 / 7


@pytest.mark.parametrize("dimension", [1, 2, 10**6])
def test_a_wide_normal_is_the_ball_and_a_narrow_one_is_not_cut(dimension):
    wide = Radius(1e30, dimension)
    assert wide.mean_square == pytest.approx(dimension / (dimension + 2), rel=1e-6)
    narrow = Radius(1e-30, dimension)
    assert narrow.mean_square == pytest.approx(dimension * 1e-60, rel=1e-6)


def test_the_sphere_draws_nothing():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    assert Radius("sphere", 4).draw(3, generator).tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(generator.get_state(), before)
