"""Parts of a claim: held, not held, undecided; and what follows for the whole."""

import itertools
import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.claims.findings import (
    Finding,
    above,
    agreeing,
    alike,
    below,
    every,
    fact,
    missed,
    shown,
    unlike,
    unmoved,
    verdict,
)
from spiritlevel_lab.claims.numbers import IntervalEstimate
from spiritlevel_lab.claims.population import why
from spiritlevel_lab.statistics import spearman

NAN = math.nan


def between(low, high):
    return IntervalEstimate((low + high) / 2, low, high, 9)


@pytest.mark.parametrize(
    ("interval", "bound", "paper", "rises", "falls"),
    [
        ((0.1, 0.5), 0.0, None, "held", "not held"),
        ((-0.5, -0.1), 0.0, None, "not held", "held"),
        ((-0.2, 0.4), 0.0, None, "undecided", "undecided"),
        ((0.0, 0.4), 0.0, None, "undecided", "undecided"),
        ((NAN, NAN), 0.0, None, "undecided", "undecided"),
        ((1.2, 2.0), 1.0, None, "held", "not held"),
        ((0.2, 2.0), 1.0, None, "undecided", "undecided"),
        ((-0.2, 0.4), 0.0, 0.8, "not held", "undecided"),  # the paper's number is out of reach
        ((-0.2, 0.4), 0.0, 0.3, "undecided", "undecided"),
        ((-0.2, 0.4), 0.0, -0.8, "undecided", "not held"),
        ((0.1, 0.4), 0.0, 0.8, "held", "not held"),
        ((NAN, NAN), 0.0, 0.8, "undecided", "undecided"),
    ],
)
def test_sides_of_a_bound(interval, bound, paper, rises, falls):
    found = between(*interval)
    # a paper's number counts for the side it lies on
    up = paper if paper is None or paper > bound else None
    down = paper if paper is None or paper < bound else None
    assert above("it rises", found, bound, paper=up).result == rises
    assert below("it falls", found, bound, paper=down).result == falls
    assert below("it falls", found, bound).seen is not found
    assert below("it falls", between(-3, -1)).seen == between(-3, -1)


@pytest.mark.parametrize(
    ("interval", "grows"),
    [
        ((11.0, 12.0), "held"),
        ((5.0, 12.0), "undecided"),
        ((1.5, 9.0), "undecided"),  # less than our threshold, and it grows all the same
        ((0.5, 9.0), "undecided"),
        ((0.5, 0.9), "not held"),
    ],
)
def test_a_threshold_of_our_own_refutes_nothing(interval, grows):
    assert above("it grows tenfold", between(*interval), 1.0, ours=10.0).result == grows


def test_the_papers_number_refutes_nothing_in_other_networks():
    for judge, sign in ((above, 1), (below, -1)):
        around = between(*sorted((-0.1 * sign, 0.3 * sign)))
        assert judge("it moves", around, paper=0.76 * sign).result == "not held"
        elsewhere = judge("it moves", around, paper=0.76 * sign, comparable=False)
        assert (elsewhere.result, elsewhere.seen) == ("undecided", around)
        against = between(*sorted((-0.3 * sign, -0.1 * sign)))
        assert judge("it", against, paper=0.76 * sign, comparable=False).result == "not held"


def test_what_has_no_interval_is_shown_and_neither_holds_nor_refutes():
    part = shown("it spans orders of magnitude", "a factor of 10.8")
    assert verdict([part]) == "undecided"
    assert verdict([part, fact("it is so", True, "")]) == "partly"
    assert verdict([part, fact("it is so", False, "")]) == "no"


@pytest.mark.parametrize(
    ("ways", "result"),
    [
        (((0.1, 0.5), (0.2, 0.6)), "held"),
        (((-0.5, -0.1), (-0.6, -0.2)), "not held"),
        (((-0.5, -0.1), (0.2, 0.6)), "undecided"),  # Pearson's against ranks
        (((-0.5, -0.1), (-0.6, 0.2)), "undecided"),
    ],
)
def test_heavy_tails_need_two_ways_to_say_the_same(ways, result):
    names = ("Pearson", "Spearman")
    found = agreeing("it rises", [above(n, between(*w)) for n, w in zip(names, ways, strict=True)])
    assert (found.part, found.result) == ("it rises", result)
    assert found.seen.count(": ") == 2


@pytest.mark.parametrize(
    ("low", "high", "same", "other"),
    [
        (0.75, 0.85, "held", "not held"),
        (0.55, 0.65, "undecided", "undecided"),  # below our level, and not refuted by it
        (-0.2, 0.3, "undecided", "undecided"),
        (-0.5, -0.1, "not held", "held"),
    ],
)
def test_the_same_trend_is_refuted_by_an_interval_below_0(low, high, same, other):
    found = between(low, high)
    assert (alike("", found, 0.7).result, unlike("", found, 0.7).result) == (same, other)


@pytest.mark.parametrize(
    ("interval", "result"),
    [
        ((-1.0, 2.0), "not refuted"),
        ((0.5, 2.0), "not held"),
        ((-2.0, -0.5), "not held"),
        ((NAN, NAN), "undecided"),
    ],
)
def test_nothing_moves(interval, result):
    assert unmoved("nothing moves", between(*interval)).result == result


def test_of_a_correlation():
    found = spearman([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5])
    seen = above("they go together", found).seen
    assert (seen.value, seen.low, seen.high, seen.n) == (found.value, found.low, found.high, 6)


def of(*results):
    return [Finding("a part", result, "") for result in results]


@pytest.mark.parametrize(
    ("results", "agrees"),
    [
        (["held", "held"], "yes"),
        (["held", "not refuted"], "yes"),
        (["held", "undecided"], "partly"),
        (["held", "not held"], "partly"),
        (["undecided", "not held"], "no"),
        (["not refuted", "not held"], "no"),
        (["undecided", "not refuted"], "undecided"),
        (["not refuted"], "undecided"),  # that nothing moves is not shown by a wide interval
    ],
)
def test_verdicts(results, agrees):
    for order in itertools.permutations(results):
        assert verdict(of(*order)) == agrees
    assert missed(of(*results)) == ("no" if "not held" in results else "undecided")


@pytest.mark.parametrize(
    ("results", "result"),
    [
        (["held", "held"], "held"),
        (["held", "undecided"], "undecided"),
        (["undecided", "not held", "held"], "not held"),
        (["not refuted", "held"], "not refuted"),
    ],
)
def test_several_as_one(results, result):
    found = every("all of them", of(*results))
    assert found.result == result
    assert found.seen.count("a part") == len(results)


def test_facts():
    assert fact("it is so", True, "5 of 5") == Finding("it is so", "held", "5 of 5")
    assert fact("it is so", False, "4 of 5").result == "not held"


def test_why_a_measure_misses_the_gap():
    """A confounder that goes with both, planted so that it hides the measure."""
    random = numpy.random.default_rng(0)
    loss = random.normal(size=200)
    signal = random.normal(size=200)
    rows = [
        {"gap": s - 3 * c, "train_loss": c, "softmax.gini": u, "relative.kappa": s + 3 * c}
        for s, c, u in zip(signal, loss, random.normal(size=200), strict=True)
    ]
    said = why(rows, "relative.kappa")
    plain = stats.spearmanr([r["relative.kappa"] for r in rows], [r["gap"] for r in rows]).statistic
    assert plain < -0.5
    for name in ("relative.kappa", "gap"):
        expected = stats.spearmanr(loss, [row[name] for row in rows]).statistic
        assert f"of {expected:+.2f} [" in said
    ranks = {k: stats.rankdata([row[k] for row in rows]) for k in rows[0]}
    held = numpy.column_stack([numpy.ones(200), ranks["train_loss"], ranks["softmax.gini"]])
    rest = [
        ranks[k] - held @ numpy.linalg.lstsq(held, ranks[k])[0] for k in ("relative.kappa", "gap")
    ]
    left = stats.pearsonr(*rest).statistic
    assert left > 0.5
    assert (
        f"held fixed, relative flatness and the gap have a rank correlation of {left:+.2f}" in said
    )


@pytest.mark.parametrize(("judge", "sign"), [(above, 1), (below, -1)])
def test_what_excludes_the_papers_number_says_so(judge, sign):
    """In the interval's own direction, and only where that decided."""
    around = between(*sorted((-0.1 * sign, 0.3 * sign)))
    excluded = judge("it moves", around, paper=0.76 * sign)
    assert excluded.result == "not held"
    assert excluded.seen == f"{around}; the paper's {0.76 * sign:g} lies outside"
    assert judge("it moves", around, paper=0.2 * sign).seen == around
    opposite = between(*sorted((-0.3 * sign, -0.1 * sign)))
    assert excluded.number == around
    assert judge("it moves", opposite, paper=0.76 * sign) == Finding(
        "it moves", "not held", opposite, 0.76 * sign, None, opposite
    )
