"""What is printed of a study's statistics: every number of it, checked against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import summary

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
    """By the titles of its columns, the cells of each measure; an interval is one cell."""
    found = {}
    for block in text.split("\n\n"):
        lines = block.splitlines()
        ruled = [place for place, line in enumerate(lines) if line and set(line) == {"-"}]
        for place in ruled:
            heading = lines[place - 1].split(maxsplit=1)[1]
            rows = [
                line.replace(", ", ",").replace(" [", "[").split() for line in lines[place + 1 :]
            ]
            for row in rows:
                if row[1] in ("Spearman", "Pearson", "Kendall"):  # a row for each coefficient
                    row[:3] = [f"{row[0]} {row[2]}"]
            found[heading] = {row[0]: [cell.replace("−", "-") for cell in row[1:]] for row in rows}
    return found


def columns(rows, name):
    x, y = ([row[key] for row in rows] for key in ("measures", "target"))
    return [values[name] for values in x], y


@pytest.fixture(scope="module")
def found():
    return summary(study())


@pytest.fixture(scope="module")
def printed(found):
    return tables(found.details(200))


def named(printed, word: str) -> dict[str, list[str]]:
    [heading] = [heading for heading in printed if word in heading]
    return printed[heading]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_are_no_wider_than_asked(found, width):
    lines = found.details(width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("measure ") for line in lines) > (2 if width > 100 else 3)


@pytest.mark.parametrize("name", [LONG, "m"])
def test_the_first_table_has_what_judges(found, name):
    rho, p, given, n = named(tables(str(found)), "p Holm")[name]
    row = found[name]
    assert rho == f"{row.judged.value:+.2f}[{row.judged.low:+.2f},{row.judged.high:+.2f}]"
    assert float(p) == pytest.approx(row.holm["judged"], rel=0.06)
    assert n == "30"
    assert given == f"{row.given.value:+.2f}[{row.given.low:+.2f},{row.given.high:+.2f}]"


@pytest.mark.parametrize("name", [LONG, "m"])
def test_regression_and_p_are_scipys(printed, name):
    x, y = columns(study(), name)
    line = stats.linregress(x, y)
    *cells, n = named(printed, "slope")[name]
    truth = (line.slope, line.stderr, line.pvalue, line.intercept, line.rvalue**2)
    assert n == "30"
    assert list(map(float, cells)) == pytest.approx(truth, rel=0.05, abs=0.005)
    tests = {"ρ": stats.spearmanr, "r": stats.pearsonr, "τ": stats.kendalltau}
    for letter, of in tests.items():
        [*_, p, _] = named(printed, "coefficient")[f"{name} {letter}"]
        assert float(p) == pytest.approx(of(x, y).pvalue, rel=0.05)


def test_what_takes_runs_as_independent_stands_below_one_heading(found):
    """Its interval is narrower or as wide, so it must not be taken for the one that judges."""
    text = found.details(100)
    heading = text.index("If all runs were independent")
    for word in ("Pearson r", "Kendall τ", "slope"):
        assert word not in text[:heading], word
    assert "independent" not in str(found).replace("as independent", "")


def test_p_is_corrected_over_the_two_measures_that_vary(found):
    rows = named(tables(str(found)), "p Holm")
    plain = {name: found[name].judged.p for name in (LONG, "m")}
    small, large = sorted(plain.values())
    corrected = {small: min(1.0, 2 * small), large: max(2 * small, large)}
    for name, p in plain.items():
        assert float(rows[name][1]) == pytest.approx(corrected[p], rel=0.06)


def test_what_is_given_is_the_correlation_of_residuals(found):
    rows = [row for row in study() if row["confounders"]["size"] is not None]
    x, y = (np.array(column) for column in columns(rows, "m"))
    size = np.array([row["confounders"]["size"] for row in rows])
    *_, cell, n = named(tables(str(found)), "p Holm")["m"]
    assert n == "30"  # of ρ itself
    assert "m, ρ given confounders: over 29 runs of 30." in found.notes()
    a, b, c = (stats.rankdata(v) for v in (x, y, size))
    design = np.column_stack([np.ones(29), c])
    left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (a, b)]
    assert float(cell.split("[")[0]) == pytest.approx(np.corrcoef(left)[0, 1], abs=0.0051)


def test_what_was_not_computed_has_no_table():
    rows = study()
    for row in rows:
        del row["confounders"]
    found = summary(rows)
    assert "given" not in str(found)
    printed = tables(found.details(200))
    assert set(named(printed, "slope")["fixed"][:-1]) == {"–"}


@pytest.mark.parametrize(("confidence", "words"), [(0.95, "95%"), (0.999, "99.9%"), (0.5, "50%")])
def test_confidence_is_not_rounded(confidence, words):
    found = summary(study(), confidence=confidence)
    assert f"Brackets: {words} intervals." in str(found)
    assert f"their {words} intervals" in " ".join(found.details().split())


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 95.0, math.nan])
def test_no_confidence(confidence):
    rows = [row | {"measures": {}} for row in study()]
    with pytest.raises(SpiritlevelError, match="'confidence' argument must lie between 0 and 1"):
        summary(rows, confidence=confidence)
