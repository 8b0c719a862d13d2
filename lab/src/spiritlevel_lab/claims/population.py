"""A population of networks: what each measure says about the gap, and what is left of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiritlevel.measures import names
from spiritlevel.measures.confounders import IN_PAPERS, factors_held_fixed
from spiritlevel.records.content import Cell, CorrelationCell, Figure, Table

from ..statistics import Correlation, Judged, pearson, spearman
from .experiment import Row, titled
from .findings import estimate
from .numbers import IntervalEstimate, logarithms
from .rows import OUTCOMES, both_scopes, column, grouped
from .settings import (
    judged_of,
    levels_of,
    partial_of,
    setting_names,
    setting_series,
    settings_of,
)

GAP = "gap"
FEW = 10  # networks, below which a correlation says nothing
CONFOUNDERS = IN_PAPERS


def correlations(
    rows: Sequence[Row], measures: Sequence[str], settings: Sequence[str] = ()
) -> tuple[Table, dict[str, Judged]]:
    """One row per measure: Pearson, Spearman, and Spearman with the confounders held fixed.

    If networks of one setting are repeated, the correlations that are returned have the widest
    interval.
    """
    gap = column(rows, GAP)
    repeated = settings_of(rows, settings) is not None
    table: list[list[Cell]] = []
    ranks: dict[str, Judged] = {}
    for name in measures:
        values = column(rows, name)
        plain = spearman(values, gap)
        ranks[name] = judged_of(rows, name, GAP, settings)
        fixed = [key for key in CONFOUNDERS if key != name]
        cells: tuple[Correlation | Judged, ...] = (
            pearson(values, gap),
            plain,
            *([ranks[name]] if repeated else []),
            pearson(logarithms(values), gap),
            partial_of(rows, name, GAP, fixed, settings),
        )
        table.append(
            [
                *(name, plain.n),
                *(estimate(correlation) for correlation in cells),
                ", ".join(factors_held_fixed(name, fixed)) or None,
            ]
        )
    titles = (
        *("measure", "n", "Pearson", "Spearman"),
        *(["Spearman, widest interval"] if repeated else []),
        *(
            "Pearson, logarithm",
            "Spearman, confounders held fixed",
            "factors of the measure among them",
        ),
    )
    return Table(titles, table), ranks


def measured(rows: Sequence[Row], measures: Sequence[str]) -> list[str]:
    """Columns of those measures that some run has, of the whole network or of its head alone."""
    columns = both_scopes(measures)
    return [name for name in columns if any(row.get(name) is not None for row in rows)]


def whole_catalogue(rows: Sequence[Row], settings: Sequence[str] = ()) -> Table:
    """The same for all measures that the runs have, the largest rank correlation first.

    Those that suit few of the networks come last: their correlation may be anything.
    """
    gap = column(rows, GAP)
    ranks = {name: judged_of(rows, name, GAP, settings) for name in measured(rows, names())}
    table: list[list[Cell]] = [
        [name, found.n, estimate(pearson(column(rows, name), gap)), estimate(found)]
        for name, found in ranks.items()
    ]

    def place(cells: Sequence[Cell]) -> tuple[bool, float]:
        correlation = ranks[str(cells[0])]
        return correlation.n >= FEW, _value(correlation)

    return titled(
        "Everything that was measured",
        "The correlation of every measure with the gap, the largest first. Of measures that tell "
        "nothing, about one in 20 has an interval that misses 0. What each of them is: spiritlevel "
        "show NAME.",
        Table(
            ("measure", "n", "Pearson", "Spearman, widest interval"),
            sorted(table, key=place, reverse=True),
        ),
    )


def finite_rows(rows: Sequence[Row], measure: str) -> list[Row]:
    """The runs with a number for the measure and for the gap."""
    return [
        row
        for row in rows
        if all(row.get(k) is not None and math.isfinite(row[k]) for k in (measure, GAP))
    ]


def squared(correlation: Correlation) -> IntervalEstimate:
    """R² of a line through two columns: every value that a correlation in its interval can have."""
    low, high = sorted((correlation.low**2, correlation.high**2))
    return IntervalEstimate(
        correlation.value**2,
        0.0 if correlation.low <= 0 <= correlation.high else low,
        high,
        correlation.n,
    )


def scatter(rows: Sequence[Row], measure: str, settings: Sequence[str] = ()) -> Figure:
    """One point per network: the measure across, the gap upwards; a line for each setting."""
    drawn = finite_rows(rows, measure)
    x = column(drawn, measure)
    log = bool(x) and min(x) > 0
    series = setting_series(drawn, measure, GAP, settings)
    return Figure(
        *(measure, "generalization gap", series),
        log_x=log,
        points=True,
        fitted=len(series) > 1,
        names=setting_names(drawn, settings),
    )


def why(
    rows: Sequence[Row],
    measure: str,
    name: str = "relative flatness",
    settings: Sequence[str] = (),
) -> str:
    """What stands between a measure and the gap: settings, and confounders that go with both."""
    values, gap = column(rows, measure), column(rows, GAP)
    confounders = {key: column(rows, key) for key in CONFOUNDERS if key != measure}
    said = [
        f"the {CONFOUNDERS[key]} has a rank correlation of {spearman(each, values)} with {name} "
        f"and of {spearman(each, gap)} with the gap"
        for key, each in confounders.items()
    ]
    left = partial_of(rows, measure, GAP, list(confounders), settings)
    return (
        f"Over {left.n} networks {' and '.join(said)}. With them held fixed, {name} and the gap "
        f"have a rank correlation of {left}.{_part_of_it(measure, list(confounders))}"
        f"{on_three_levels(rows, measure, settings)}"
    )


def on_three_levels(rows: Sequence[Row], measure: str, settings: Sequence[str]) -> str:
    """Within and between settings, as a sentence after others; "" where none is repeated."""
    found = levels_of(rows, measure, GAP, settings)
    return f" {found.sentence}" if found is not None and found.sentence else ""


def _part_of_it(measure: str, fixed: Sequence[str]) -> str:
    held = factors_held_fixed(measure, fixed)
    if not held:
        return ""
    return (
        f" But {' and '.join(CONFOUNDERS[key] for key in held)} is a factor of {measure} itself: "
        "this correlation is that of the rest of the measure, not of the whole."
    )


def _value(correlation: Judged) -> float:
    return -2.0 if math.isnan(correlation.value) else correlation.value


WITHIN, OVER_ALL = "within settings", "over all"
CAPTION = (
    "Rank correlations. Each network has a gap of the losses, a gap of the accuracies and a test "
    "error, and they need not agree: the claim is judged by the one that its rule names, and the "
    "others stand beside it. {levels}A dash: not recorded."
)
LEVELS = (
    "Within settings: over seeds of one setting, with the interval of a permutation test. Over "
    "all: with the widest interval. "
)


def outcomes_table(
    rows: Sequence[Row], columns: Sequence[str], settings: Sequence[str] = (), by: str = ""
) -> Table:
    """A row per measure, and per value of `by`: its correlation with each outcome, each level."""
    groups = grouped(rows, by) if by else {"": rows}
    table: list[list[Cell]] = []
    repeated = False
    for name, group in groups.items():
        for measure in columns:
            if all(row.get(measure) is None for row in group):
                continue
            found = {target: _of(group, measure, target, settings) for target in OUTCOMES}
            repeated |= any(within is not None for within, _ in found.values())
            within, over_all = zip(*found.values(), strict=True)
            table.append([*([name] if by else []), measure, *within, *over_all])
    if not repeated:
        table = [[*row[: -2 * len(OUTCOMES)], *row[-len(OUTCOMES) :]] for row in table]
    levels = [f"{level}: {each}" for level in (WITHIN, OVER_ALL) for each in OUTCOMES.values()]
    titles = levels if repeated else list(OUTCOMES.values())
    return titled(
        "Three outcomes side by side",
        CAPTION.format(levels=LEVELS if repeated else ""),
        Table((*([by] if by else []), "measure", *titles), table),
    )


def _of(
    rows: Sequence[Row], measure: str, target: str, settings: Sequence[str]
) -> tuple[CorrelationCell | None, CorrelationCell | None]:
    """Within settings and over all; None where there is none."""
    if all(row.get(target) is None for row in rows):
        return None, None
    found = levels_of(rows, measure, target, settings)
    within = None if found is None or not found.within.n else found.within.cell
    return within, judged_of(rows, measure, target, settings).cell
