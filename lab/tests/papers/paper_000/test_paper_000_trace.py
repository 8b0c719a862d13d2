"""Paper 000, Tables 1 and 2: the benchmark of the trace on rows with a known answer."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.papers import find

HELD, NOT, OPEN = "held", "not held", "undecided"


def results(outcome):
    return [finding.result for finding in outcome.findings]


def trace_rows(error=0.0, probes=0.2, differentiation=50.0, hutchinson=10.0):
    ways = {"autograd": differentiation, "functorch": 9.0, "hutchinson": hutchinson}
    rows = []
    for weights in ("ones", "random"):
        for images, kernels in ((20.0, 10.0), (100.0, 40.0)):
            for seed in range(3):
                slow = 1 + 0.01 * seed
                row = {"task.weights": weights, "task.images": images, "task.kernels": kernels}
                row |= {"seed": seed, "task.functorch_mib": images * kernels}
                row |= {"task.seconds/closed": 0.01}
                row |= {f"task.seconds/{way}": 0.01 * by * slow for way, by in ways.items()}
                for name in ("trace", "kappa"):
                    row |= {f"task.{name}_error/closed": error}
                    row |= {f"task.{name}_error/functorch": 1e-15}
                    row |= {f"task.{name}_error/hutchinson": probes}
                if kernels > 20:
                    row = {k: None if k.endswith("functorch") else v for k, v in row.items()}
                rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("changes", "agrees", "parts"),
    [
        ({}, "yes", [HELD, HELD, HELD]),
        ({"differentiation": 0.5}, "partly", [HELD, NOT, HELD]),
        ({"hutchinson": 0.99}, "partly", [HELD, HELD, OPEN]),
        ({"error": 1e-4}, "no", [NOT, HELD, HELD]),  # speed alone is not "partly"
        ({"error": 1e-4, "hutchinson": 0.5}, "no", [NOT, HELD, NOT]),
    ],
)
def test_trace_benchmark(changes, agrees, parts):
    rows = trace_rows(**changes)
    outcome = find("000-table-1").analyse(rows)
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    places = [row[:4] for row in outcome.table.rows]
    assert places[:2] == [["ones", 20, 10, 3], ["ones", 100, 40, 3]]
    autograd, functorch = outcome.table.rows[0][6:8]
    assert f"weights ones, 20 images, 10 kernels: {autograd}" in outcome.findings[1].seen
    times = [row["task.seconds/autograd"] for row in rows[:3]]
    assert autograd.value == pytest.approx(stats.gmean(times) / 0.01)
    assert functorch.value == pytest.approx(stats.gmean([9.0, 9.09, 9.18]))
    assert outcome.table.rows[1][7] == "does not fit"
    lines = outcome.figure.series
    assert [(line.name, line.x) for line in lines] == [
        ("automatic differentiation", [10.0, 40.0]),
        ("functorch", [10.0]),
        ("Hutchinson's estimate", [10.0, 40.0]),
    ]
    both = [row["task.seconds/autograd"] / 0.01 for row in rows if row["task.kernels"] == 10]
    low, high = stats.t.interval(0.95, 5, numpy.log(both).mean(), stats.sem(numpy.log(both)))
    assert (lines[0].y[0], len(both)) == (pytest.approx(stats.gmean(both)), 6)
    assert (lines[0].low[0], lines[0].high[0]) == pytest.approx((math.exp(low), math.exp(high)))


def test_probes_that_both_kinds_of_weights_share_count_once():
    rows = trace_rows()
    errors = {}
    for row in rows:
        drawn = 0.01 * (1 + row["seed"]) * row["task.kernels"]
        row["task.trace_error/hutchinson"] = drawn + 1e-6 * (row["task.weights"] == "random")
        errors[row["task.kernels"], row["seed"]] = drawn + 0.5e-6
    low, high = stats.ttest_1samp(list(errors.values()), 0.0).confidence_interval()
    middle = numpy.mean(list(errors.values()))
    assert f"off by {middle:.3g} [{low:.3g}, {high:.3g}] on average (n = 6 draws" in (
        find("000-table-1").analyse(rows).conclusion
    )


def test_one_slow_closed_form_among_the_configurations_counts():
    rows = trace_rows()
    for row in rows[-3:]:
        row["task.seconds/closed"] *= 1000
    outcome = find("000-table-1").analyse(rows)
    assert (outcome.agrees, results(outcome)) == ("partly", [HELD, NOT, NOT])


def test_error_that_is_not_a_number_is_no_agreement():
    rows = trace_rows(error=1e-16)
    rows[-1]["task.kappa_error/closed"] = math.nan
    outcome = find("000-table-1").analyse(rows)
    assert (outcome.agrees, results(outcome)) == ("no", [NOT, HELD, HELD])
    assert "23 of 24 numbers" in outcome.findings[0].seen
