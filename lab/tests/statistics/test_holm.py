"""Holm against the closed testing procedure it abbreviates."""

import itertools
import math

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import holm


def closed_testing(p_values: dict[str, float]) -> dict[str, float]:
    """A hypothesis falls once Bonferroni rejects every set of hypotheses that contains it."""
    adjusted = dict.fromkeys(p_values, 0.0)
    for size in range(1, len(p_values) + 1):
        for chosen in itertools.combinations(p_values, size):
            p = min(1.0, size * min(p_values[name] for name in chosen))
            for name in chosen:
                adjusted[name] = max(adjusted[name], p)
    return adjusted


@pytest.mark.parametrize("seed", range(5))
def test_equals_closed_testing(seed):
    draws = np.random.default_rng(seed).beta(0.3, 1, 8)
    p_values = {f"m{i}": float(p) for i, p in enumerate(draws)}
    p_values["m7"] = p_values["m3"]  # a tie
    found = holm(p_values)
    assert found.adjusted == pytest.approx(closed_testing(p_values), rel=1e-12)
    assert list(found.adjusted) == list(p_values)
    assert (found.num_tests, found.skipped) == (8, ())


def test_untested_names_do_not_count():
    found = holm({"a": 0.02, "b": math.nan, "c": 0.5, "d": math.nan})
    assert found.adjusted == {"a": 0.04, "c": 0.5}
    assert (found.num_tests, found.skipped) == (2, ("b", "d"))


def test_nothing_to_correct():
    assert holm({}).adjusted == {}
    assert holm({"a": math.nan}).skipped == ("a",)


@pytest.mark.parametrize("p", [-0.1, 1.5, math.inf])
def test_refuses_what_is_no_probability(p):
    with pytest.raises(SpiritlevelError, match=f"Got {p!r} for 'a'. Pass nan for a test"):
        holm({"a": p})


def test_false_findings_stay_below_the_level():
    # Twenty tests without any effect, 2000 times: at most 5 % of the families find something.
    draws = np.random.default_rng(0).uniform(size=(2000, 20))
    false = [min(holm(dict(enumerate(row))).adjusted.values()) < 0.05 for row in draws]
    assert np.mean(false) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 2000)
    assert np.mean(false) > 0.03  # and it does not throw everything away
