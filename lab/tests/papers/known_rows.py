"""Rows of runs whose answer is known, for the analyses of experiments."""

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.papers import find

MARKS = {"held": "+", "not held": "-", "undecided": "?", "not refuted": "0"}


def rows_of(name, axes, value, seeds=4):
    """A row a setting and seed with every column; `value` gives the numbers that matter."""
    found = []
    for axis in axes:
        for seed in range(seeds):
            row = dict.fromkeys(find(name).columns, 1.0) | axis | {"seed": seed}
            if "outcome" in row:
                row["outcome"] = "train_accuracy"
            jitter = 0.001 * (seed * seed % 3)
            row |= {key: number + jitter for key, number in value(axis, seed).items()}
            found.append(row)
    return found


def judged(name, rows, parts, agrees, lone_seed=False):
    """The outcome, if its parts have these marks and one seed decides nothing, unless it can."""
    outcome = find(name).analyse(rows)
    assert "".join(MARKS[finding.result] for finding in outcome.findings) == parts
    assert outcome.agrees == agrees
    if not lone_seed:  # there are no intervals then
        lone = find(name).analyse([row for row in rows if row["seed"] == 0])
        assert {lone.agrees, *(finding.result for finding in lone.findings)} == {"undecided"}
    return outcome


def students(changes):
    """Mean and 95 % interval, from scipy."""
    low, high = stats.t.interval(0.95, len(changes) - 1, numpy.mean(changes), stats.sem(changes))
    return pytest.approx(numpy.mean(changes)), pytest.approx(low), pytest.approx(high)
