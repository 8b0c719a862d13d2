"""What is printed of a study's statistics: every number of it, checked against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import kendall, pearson, spearman, summary

LONG = "sensitivity.robustness_prediction"  # the longest name of the catalogue


def study(n: int = 30) -> list[dict]:
    """Two measures of the same cause, one on a tiny scale; a confounder missing in one run."""
    rng = np.random.default_rng(0)
    cause, size, other = rng.standard_normal((3, n))
    values = cause + size + 0.3 * rng.standard_normal((2, n))
    return [
        {
            "settings": {"seed": i},
            "measures": {LONG: -1e-5 * values[0, i], "m": values[1, i], "fixed": 1.0},
            "target": cause[i] + size[i] + other[i],
            "confounders": {"size": size[i] if i else None, "m": values[1, i]},
        }
        for i in range(n)
    ]


def tables(text: str) -> dict[str, dict[str, list[str]]]:
    """By heading, the cells of each measure; an interval is one cell."""
    found = {}
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if len(lines) > 2 and set(lines[2]) == {"-"}:
            assert lines[1].split()[:2] == ["measure", "n"]
            rows = [line.replace(", ", ",").replace(" [", "[").split() for line in lines[3:]]
            found[lines[0]] = {row[0]: row[1:] for row in rows}
            assert max(map(len, lines)) <= 100
    return found


def columns(rows, name):
    x, y = ([row[key] for row in rows] for key in ("measures", "target"))
    return [values[name] for values in x], y


@pytest.fixture(scope="module")
def printed():
    return tables(str(summary(study(), resamples=200)))


def named(printed, word: str) -> dict[str, list[str]]:
    [heading] = [heading for heading in printed if word in heading]
    return printed[heading]


def test_all_four_tables_are_there(printed):
    assert [heading.split()[0] for heading in printed] == ["Regression:", "p", "95%", "Given"]
    assert all(list(rows) == [LONG, "m", "fixed"] for rows in printed.values())


@pytest.mark.parametrize("name", [LONG, "m"])
def test_regression_and_p_are_scipys(printed, name):
    x, y = columns(study(), name)
    line = stats.linregress(x, y)
    n, *cells = named(printed, "Regression")[name]
    truth = (line.slope, line.intercept, line.stderr, line.pvalue, line.rvalue**2)
    assert n == "30"
    assert list(map(float, cells)) == pytest.approx(truth, rel=0.05)
    n, *cells = named(printed, "p of")[name]
    plain = [f(x, y).pvalue for f in (stats.pearsonr, stats.spearmanr, stats.kendalltau)]
    assert n == "30"
    assert list(map(float, cells[::2])) == pytest.approx(plain, rel=0.05)


def test_p_is_corrected_over_the_two_measures_that_vary(printed):
    rows = named(printed, "p of")
    plain = {name: float(rows[name][1]) for name in (LONG, "m")}
    small, large = sorted(plain.values())
    corrected = {small: min(1.0, 2 * small), large: max(2 * small, large)}
    for name, p in plain.items():
        assert float(rows[name][2]) == pytest.approx(corrected[p], rel=0.06)


def test_bootstrap_is_near_scipys(printed):
    x, y = columns(study(), "m")
    _, *cells = named(printed, "BCa")["m"]
    functions = (stats.pearsonr, stats.spearmanr, stats.kendalltau)
    for cell, function in zip(cells, functions, strict=True):
        truth = stats.bootstrap(
            (x, y),
            lambda a, b, f=function: f(a, b).statistic,
            paired=True,
            vectorized=False,
            n_resamples=500,
            random_state=np.random.default_rng(0),
        ).confidence_interval
        ends = [float(end) for end in cell.strip("[]").split(",")]
        assert ends == pytest.approx([truth.low, truth.high], abs=0.12)  # of few resamples


def test_bootstrap_is_not_the_formula(printed):
    x, y = columns(study(), LONG)
    _, *cells = named(printed, "BCa")[LONG]
    for cell, function in zip(cells, (pearson, spearman, kendall), strict=True):
        own = function(x, y, interval="bca", resamples=200)
        formula = function(x, y)
        assert cell == f"[{own.low:+.2f},{own.high:+.2f}]"
        assert cell != f"[{formula.low:+.2f},{formula.high:+.2f}]"


def test_partial_correlations_are_those_of_residuals(printed):
    rows = [row for row in study() if row["confounders"]["size"] is not None]
    x, y = (np.array(column) for column in columns(rows, "m"))
    size = np.array([row["confounders"]["size"] for row in rows])
    n, linear, p, ranked, p_ranked = named(printed, "Given")["m"]
    assert n == "29"  # not the 30 of the other tables
    for cell, ranks in ((linear, False), (ranked, True)):
        a, b, c = (stats.rankdata(v) if ranks else v for v in (x, y, size))
        design = np.column_stack([np.ones(29), c])
        left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (a, b)]
        assert float(cell.split("[")[0]) == pytest.approx(np.corrcoef(left)[0, 1], abs=0.0051)
    assert 0 < float(p) <= 1
    assert 0 < float(p_ranked) <= 1


def test_what_was_not_computed_has_no_table():
    rows = study()
    for row in rows:
        del row["confounders"]
    found = tables(str(summary(rows, resamples=0)))
    assert [heading.split()[0] for heading in found] == ["Regression:", "p"]
    assert set(named(found, "Regression")["fixed"][1:]) == {"–"}


def test_resamples_without_a_value_are_told():
    rows = study()[1:7]
    for i, row in enumerate(rows):
        row["measures"] = {"step": float(i == 0)}  # most resamples do not have the one run
    notes = summary(rows, resamples=300).notes()
    assert any(note.startswith("step, BCa of r: ") and "of 300 resamples" in note for note in notes)


@pytest.mark.parametrize(("confidence", "words"), [(0.95, "95%"), (0.999, "99.9%"), (0.5, "50%")])
def test_confidence_is_not_rounded(confidence, words):
    text = str(summary(study(), confidence=confidence, resamples=100))
    assert f"Brackets: {words} intervals." in text
    assert f"\n{words} intervals of the bootstrap" in text


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 95.0, math.nan])
def test_no_confidence(confidence):
    rows = [row | {"measures": {}} for row in study()]
    with pytest.raises(SpiritlevelError, match="'confidence' argument must lie between 0 and 1"):
        summary(rows, confidence=confidence)
