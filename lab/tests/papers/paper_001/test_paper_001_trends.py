"""Paper 001, A.3: whether numbers of one training move together."""

import numpy
import pytest
from scipy import stats

from papers.known_rows import judged, rows_of, students
from spiritlevel_lab.claims.findings import alike, unlike
from spiritlevel_lab.claims.numbers import IntervalEstimate
from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.recipes.runs import GroupedRuns
from spiritlevel_lab.papers.recipes.statistics import computed

TRACE, FREQUENCY = "curvature.trace", "activity.frequency"


def moving(*ways):
    """Along each run the trace falls; the others with it (1), against it (-1), or by turns (0).

    None is with it in every second run, and against it in the others.
    """

    def value(axis, seed):
        activity, signal = ((-1) ** seed if way is None else way for way in ways)
        found = {}
        for point in range(1, 13):
            turn = point if point % 2 else 12 - point
            found[f"{TRACE}/{point}"] = 100 - point
            found[f"{FREQUENCY}/{point}"] = 50 - (activity * point if activity else turn)
            found[f"task.signal_norm/{point}"] = 50 - signal * point
        return {key: number + 0.01 * seed for key, number in found.items()}

    return value


@pytest.mark.parametrize(
    ("activity", "signal", "parts", "agrees"),
    [
        (1, 1, "++++", "yes"),
        (None, 1, "+?+?", "partly"),
        (-1, -1, "----", "no"),
        (0, None, "?-?-", "no"),
        (None, None, "????", "undecided"),
    ],
)
def test_trends_of_a_perceptron(activity, signal, parts, agrees):
    rows = rows_of("001-fig-7", [{"lr": 0.01}, {"lr": 0.1}], moving(activity, signal))
    outcome = judged("001-fig-7", rows, parts, agrees)
    assert len(outcome.table.rows) == 24


@pytest.mark.parametrize(
    ("activity", "parts", "agrees"),
    [(0, "+", "yes"), (-1, "+", "yes"), (None, "?", "undecided"), (1, "-", "no")],
)
def test_trends_of_a_transformer(activity, parts, agrees):
    judged("001-fig-8", rows_of("001-fig-8", [{}], moving(activity, 1)), parts, agrees)


@pytest.mark.parametrize(
    ("mean", "low", "high", "same", "other"),
    [
        (0.8, 0.1, 1.5, "held", "not held"),
        (0.6, 0.4, 0.8, "undecided", "undecided"),  # surely above 0, perhaps large
        (0.8, -0.1, 1.7, "undecided", "undecided"),
        (0.6, 0.55, 0.65, "undecided", "undecided"),  # less than our level refutes nothing
        (-0.6, -0.65, -0.55, "not held", "held"),
    ],
)
def test_the_same_trend_is_a_large_correlation(mean, low, high, same, other):
    found = IntervalEstimate(mean, low, high, 3)
    assert (alike("", found, 0.7).result, unlike("", found, 0.7).result) == (same, other)


def test_trends_are_rank_correlations_along_a_run():
    random = numpy.random.default_rng(0)
    rows, theirs = [], []
    for _ in range(3):
        one, other = random.normal(size=(2, 12))
        row = {f"one/{i}": v for i, v in enumerate(one, 1)}
        rows.append(row | {f"other/{i}": v for i, v in enumerate(other, 1)})
        theirs.append(stats.spearmanr(one, other).statistic)
    found = computed({"along": ["one", "other"]}, GroupedRuns(rows, {}))
    assert (found.value, found.low, found.high) == students(theirs)


@pytest.mark.parametrize(
    ("activity", "said"),
    [
        (-1, "The trend is opposite, not absent"),
        (None, "There is no clear trend"),
        (1, ""),
    ],
)
def test_an_opposite_trend_is_not_called_none(activity, said):
    rows = rows_of("001-fig-8", [{}], moving(activity, 1), seeds=3)
    if activity == -1:  # not quite the same in all runs, so that there is an interval
        rows[0][f"{FREQUENCY}/1"] = 99.0
    conclusion = find("001-fig-8").analyse(rows).conclusion
    assert "at n = 3;" in conclusion
    assert said in conclusion
    assert ("opposite" in conclusion) == (activity != 1)
