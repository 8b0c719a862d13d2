"""Networks by the setting they were trained with: correlations that count settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from spiritlevel.records.content import Cell, Series, Table

from ..population.population import label
from ..statistics import Judged, Levels, difference, levels, partial_judged
from ..statistics.judged import RUNS, agreeing
from ..statistics.permutations import LevelKind as Kind
from .experiment import Row, titled
from .findings import estimate
from .numbers import IntervalEstimate, logarithms
from .rows import OUTCOMES, column

TITLE = "Within and between training settings"
CAPTION = (
    "Networks of one setting differ by their seed alone. Settings with the same optimizer, say, "
    "may be alike, and so may networks with the same seed. So settings, groups of settings that "
    "share a value, and seeds are left out in turn, and the widest of these intervals judges. "
    "Within settings: over seeds of one setting, less what a seed does in all of them, with the "
    "interval of a permutation test. Between settings: of their means. Signs: those within, "
    "between and over all; a correlation below 0.1 counts as near 0, and agrees or differs with "
    "none. Pearson's correlation, of the numbers and of the measure's logarithm, can rest on few "
    "networks where tails are heavy; ranks do not."
)
KINDS: dict[str, tuple[Kind, bool]] = {
    "Spearman": ("spearman", False),
    "Pearson": ("pearson", False),
    "Pearson, logarithm": ("pearson", True),
}
COLUMNS = (
    *("measure", "correlation", "n", "within settings", "positive within", "between settings"),
    *("over all, widest interval", "over what", "signs"),
)


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
    rows: Sequence[Row],
    measure: str,
    target: str,
    columns: Sequence[str],
    kind: Kind = "spearman",
    *,
    log: bool = False,
) -> Levels | None:
    """The correlation on its three levels; None where no setting is repeated.

    With `log` it is that of the measure's logarithm.
    """
    settings = settings_of(rows, columns)
    if settings is None:
        return None
    values, outcome = column(rows, measure), column(rows, target)
    values = logarithms(values) if log else values
    return levels(
        values, outcome, settings, axes=_axes(rows, columns), seeds=_seeds(rows), kind=kind
    )


def judged_of(
    rows: Sequence[Row],
    measure: str,
    target: str,
    columns: Sequence[str] = (),
    kind: Kind = "spearman",
    *,
    log: bool = False,
) -> Judged:
    """What a claim is judged by: the widest interval, over runs, settings, groups or seeds.

    Where no setting is repeated, runs and groups of those that share a value are counted.
    """
    found = levels_of(rows, measure, target, columns, kind, log=log)
    if found is not None:
        return widest_of(found)
    values, outcome = column(rows, measure), column(rows, target)
    values = logarithms(values) if log else values
    return partial_judged(values, outcome, {}, clusters=None, axes=_axes(rows, columns), kind=kind)


def widest_of(found: Levels) -> Judged:
    """Of the intervals that count something, and that over runs, the widest."""
    judged, runs = found.judged, found.pooled
    if not runs.high - runs.low > judged.high - judged.low:
        return judged
    return agreeing(
        dataclasses.replace(
            judged, low=runs.low, high=runs.high, p=runs.p, over=RUNS, count=runs.n, fixed=()
        )
    )


def difference_of(
    rows: Sequence[Row], one: str, other: str, target: str, columns: Sequence[str] = ()
) -> Judged:
    """By how much the rank correlation of one measure is larger, with the widest interval."""
    settings = settings_of(rows, columns)
    return difference(
        *(column(rows, name) for name in (one, other, target)),
        clusters=settings,
        axes=_axes(rows, columns),
        seeds=[] if settings is None else _seeds(rows),
    )


def partial_of(
    rows: Sequence[Row], measure: str, target: str, fixed: Sequence[str], columns: Sequence[str]
) -> Judged:
    """The rank correlation with confounders held fixed, and the widest interval."""
    settings = settings_of(rows, columns)
    return partial_judged(
        column(rows, measure),
        column(rows, target),
        {name: column(rows, name) for name in fixed},
        clusters=settings,
        axes={} if settings is None else _axes(rows, columns),
        seeds=[] if settings is None else _seeds(rows),
    )


def _axes(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in _varied(rows, columns)}


def _seeds(rows: Sequence[Row]) -> list[object]:
    return [row.get("seed") for row in rows]


def levels_tables(
    rows: Sequence[Row], measures: Sequence[str], columns: Sequence[str]
) -> list[Table]:
    """One table per outcome, with rows for ranks, numbers and logarithms of each measure.

    There is none where no setting is repeated.
    """
    settings = settings_of(rows, columns)
    if settings is None:
        return []
    tables: list[Table] = []
    for target, words in OUTCOMES.items():
        if all(row.get(target) is None for row in rows):
            continue
        found = {
            (measure, name): levels_of(rows, measure, target, columns, kind, log=log)
            for measure in measures
            for name, (kind, log) in KINDS.items()
        }
        table: list[list[Cell]] = [
            [measure, name, *_cells(each)]
            for (measure, name), each in found.items()
            if each is not None
        ]
        caption = f"{len(set(settings))} settings. {CAPTION}" if not tables else ""
        tables.append(titled(f"{TITLE}: {words}", caption, Table(COLUMNS, table)))
    return tables


def within_estimate(found: Levels) -> IntervalEstimate | None:
    """The correlation within settings; None where none has networks enough for one."""
    inside = found.within
    if not inside.n:
        return None
    return IntervalEstimate(inside.value, inside.low, inside.high, inside.n)


def _cells(found: Levels) -> list[Cell]:
    inside, judged = found.within, widest_of(found)
    return [
        found.pooled.n,
        within_estimate(found),
        f"{inside.num_positive} of {inside.n}",
        estimate(found.between),
        estimate(judged),
        judged.counted.removeprefix("over ") or judged.reason,
        found.signs,
    ]


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
