"""Quantiles of Student's t against scipy."""

import math

import pytest
import scipy.stats

from spiritlevel.math.student import t_quantile

PROBABILITIES = [0.5, 0.6, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.9995]
WHOLE = [1, 2, 3, 4, 5, 7, 10, 15, 16, 30, 31, 63, 100, 399, 999, 1000, 1001, 5000, 10**6, 10**9]
BROKEN = [1.0001, 1.05, 1.3, 1.5, 1.9, 2.1, 2.5, 3.7, 6.28, 14.9, 333.3, 1000.5]


# Simpson's rule has about seven digits where the density in the angle is smooth. Below two degrees
# of freedom its slope is infinite at one end: 1 % off at p = 0.9995, which nobody asks for.
@pytest.mark.parametrize("dof", WHOLE + BROKEN)
@pytest.mark.parametrize("probability", PROBABILITIES)
def test_agrees_with_scipy(probability, dof):
    truth = scipy.stats.t.ppf(probability, dof)
    rel = 1e-6 if dof == 1 or dof >= 2 else 2e-2
    assert t_quantile(probability, dof) == pytest.approx(truth, rel=rel, abs=1e-9)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_infinite_degrees_of_freedom_are_normal(probability):
    truth = scipy.stats.norm.ppf(probability)
    assert t_quantile(probability, math.inf) == pytest.approx(truth, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dof", [1, 2, 9.5, 2000, math.inf])
def test_symmetric(dof):
    assert t_quantile(0.1, dof) == -t_quantile(0.9, dof)
    assert t_quantile(0.5, dof) == pytest.approx(0.0, abs=1e-9)


def test_closed_forms():
    for p in (0.6, 0.9, 0.975):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-7)
        two = (2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2))
        assert t_quantile(p, 2) == pytest.approx(two, rel=1e-7)


def test_falls_with_the_degrees_of_freedom_also_where_the_formula_changes():
    dofs = [1, 1.5, 2, 5, 20, 100, 500, 999, 999.9, 1000, 1000.1, 1001, 2000, 10**5, math.inf]
    values = [t_quantile(0.975, dof) for dof in dofs]
    assert values == sorted(values, reverse=True)
