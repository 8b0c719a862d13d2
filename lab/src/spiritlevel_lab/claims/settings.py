"""Networks by the setting they were trained with: correlations that count settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from spiritlevel.records.content import Cell, Series, Table

from ..population.population import label
from ..statistics import (
    Correlation,
    Judged,
    Levels,
    levels,
    partial_correlation,
    partial_judged,
)
from ..statistics.permutations import LevelKind as Kind
from .experiment import Row, titled
from .findings import estimate
from .numbers import IntervalEstimate
from .rows import column

TITLE = "Within and between training settings"
CAPTION = (
    "Networks of one setting differ by their seed alone. The interval over settings leaves out "
    "each setting in turn, so it does not take such networks for independent ones; it is what the "
    "claim is judged by. Settings with the same optimizer, say, may be alike, too, and so may "
    "networks with the same seed: the interval over groups leaves out all that share a value, and "
    "is the right one where that value decides. Of several ways to form groups the one with the "
    "widest interval stands there, which may still be narrower than that over settings. It is "
    "shown, not judged, since it was added after the runs. Between settings: of their means. "
    "Within settings: the mean of the correlations in single settings with enough runs, with "
    "Student's interval over settings or over seeds, whichever is wider. Signs: those within, "
    "between and over all; a correlation below 0.1 counts as near 0, and agrees or differs with "
    "none."
)
COLUMNS = (
    *("measure", "correlation", "n", "within settings", "positive within", "between settings"),
    *("over all, interval over runs", "interval over settings", "over groups", "signs"),
)
KINDS: tuple[Kind, ...] = ("spearman", "pearson")
GAPS = {"gap": "gap of the losses", "error_gap": "gap of the accuracies"}


def settings_of(rows: Sequence[Row], columns: Sequence[str]) -> list[str] | None:
    """The setting of each network; None where none is repeated, or there is only one.

    A study need not vary all of the columns.

    >>> settings_of([{"lr": 1, "seed": 0}, {"lr": 1, "seed": 1}, {"lr": 2, "seed": 0}], ["lr"])
    ['1', '1', '2']
    """
    varied = _varied(rows, columns)
    if not varied:
        return None
    names = [", ".join(label(row[name]) for name in varied) for row in rows]
    return names if 1 < len(set(names)) < len(names) else None


def _varied(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    return [name for name in columns if rows and name in rows[0]]


def levels_of(
    rows: Sequence[Row], measure: str, target: str, columns: Sequence[str], kind: Kind = "spearman"
) -> Levels | None:
    """The correlation on its three levels; None where no setting is repeated."""
    settings = settings_of(rows, columns)
    if settings is None:
        return None
    values, outcome = column(rows, measure), column(rows, target)
    return levels(
        values, outcome, settings, axes=_axes(rows, columns), seeds=_seeds(rows), kind=kind
    )


def over_settings(plain: Correlation, found: Levels | None) -> Correlation:
    """What a claim is judged by: the interval over settings if there are any, else over runs."""
    return plain if found is None else found.clustered


def partial_over_settings(
    rows: Sequence[Row], measure: str, target: str, fixed: Sequence[str], columns: Sequence[str]
) -> Correlation:
    """The rank correlation with confounders held fixed; its interval counts settings, if any."""
    return _partial(rows, measure, target, fixed, settings_of(rows, columns))


def cautious_partial(
    rows: Sequence[Row], measure: str, target: str, fixed: Sequence[str], columns: Sequence[str]
) -> Judged:
    """The same with the widest interval: over settings, or over groups that share something."""
    settings = settings_of(rows, columns)
    return partial_judged(
        column(rows, measure),
        column(rows, target),
        {name: column(rows, name) for name in fixed},
        clusters=settings,
        axes=_axes(rows, columns),
        seeds=[] if settings is None else _seeds(rows),
    )


def _partial(
    rows: Sequence[Row],
    measure: str,
    target: str,
    fixed: Sequence[str],
    clusters: Sequence[Hashable] | None,
) -> Correlation:
    return partial_correlation(
        column(rows, measure),
        column(rows, target),
        {name: column(rows, name) for name in fixed},
        kind="spearman",
        clusters=clusters,
    )


def _axes(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in _varied(rows, columns)}


def _seeds(rows: Sequence[Row]) -> list[object]:
    return [row.get("seed") for row in rows]


def levels_tables(
    rows: Sequence[Row], measures: Sequence[str], columns: Sequence[str]
) -> list[Table]:
    """One table per gap, with a row per measure and kind; none where no setting is repeated."""
    settings = settings_of(rows, columns)
    if settings is None:
        return []
    tables: list[Table] = []
    for target, words in GAPS.items():
        if all(row.get(target) is None for row in rows):
            continue
        table: list[list[Cell]] = []
        for measure in measures:
            for kind in KINDS:
                found = levels_of(rows, measure, target, columns, kind)
                if found is not None:
                    table.append([measure, kind.capitalize(), *_cells(found)])
        caption = f"{len(set(settings))} settings. {CAPTION}" if not tables else ""
        tables.append(titled(f"{TITLE}: {words}", caption, Table(COLUMNS, table)))
    return tables


def within_estimate(found: Levels) -> IntervalEstimate | None:
    """The mean within settings; None where none has networks enough for a correlation."""
    inside = found.within
    if not inside.n:
        return None
    return IntervalEstimate(inside.value, inside.low, inside.high, inside.n)


def _cells(found: Levels) -> list[Cell]:
    inside = found.within
    return [
        found.pooled.n,
        within_estimate(found),
        f"{inside.num_positive} of {inside.n}",
        estimate(found.between),
        estimate(found.pooled),
        estimate(found.clustered),
        _over_groups(found),
        found.signs,
    ]


def _over_groups(found: Levels) -> str | None:
    """The widest interval over groups of settings or runs; how many groups, and what they share."""
    if not found.widest:
        return None
    shared = found.shared[found.widest]
    return f"{estimate(shared)} ({shared.clusters} by {found.widest.replace('_', ' ')})"


def setting_series(rows: Sequence[Row], x: str, y: str, columns: Sequence[str]) -> list[Series]:
    """The networks of each setting as marks of their own; all in one where none is repeated."""
    settings = settings_of(rows, columns)
    if settings is None:
        return [Series(x, column(rows, x), column(rows, y))]
    return [
        Series(name, column(group, x), column(group, y))
        for name in dict.fromkeys(settings)
        for group in [[row for row, each in zip(rows, settings, strict=True) if each == name]]
    ]


def setting_names(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """What the names of those series say; "" where no setting is repeated.

    >>> setting_names([{"lr": 1, "seed": 0}, {"lr": 1, "seed": 1}, {"lr": 2, "seed": 0}], ["lr"])
    'lr'
    """
    repeated = settings_of(rows, columns) is not None
    return ", ".join(_varied(rows, columns)).replace("_", " ") if repeated else ""
