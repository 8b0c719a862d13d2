"""What each measure says about the target, and the tables of it that pages and terminals show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.records.content import Cell, Column, CorrelationCell, Table
from spiritlevel.records.notebooks import aligned, cell_text

from .confounding import Confounding
from .correlations import FINDINGS, Correlation
from .granulated import GranulatedKendall
from .intervals import percent
from .judged import Judged
from .levels import Levels
from .regression import Regression, Tails
from .sign_error import SignError

MISSING = "–"
SIGNS = "; within settings its sign differs"
JUDGED = "judged"  # the family of the p that verdicts rest on
AS_IF_INDEPENDENT = ("pearson", "spearman", "kendall", "regression", "tails")
PARTS_OF_THE_JUDGED = ("levels", "shared", "partial_pearson", "partial_spearman")


@dataclasses.dataclass(frozen=True)
class MeasureStatistics:
    """What one measure says about the target."""

    name: str
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation
    regression: Regression
    granulated: GranulatedKendall
    sign_error: SignError
    judged: Judged  # Spearman's ρ with the one interval and the one p that the verdict rests on
    tails: Tails
    partial_pearson: Correlation | None  # None: the study names no confounder
    partial_spearman: Correlation | None
    given: Judged | None = None  # the latter with the interval that judges it
    confounding: Confounding | None = None  # what error in the confounders would do to it
    # By kind: within and between settings; empty where a study does not repeat its settings.
    levels: Mapping[str, Levels] = dataclasses.field(default_factory=dict)
    # Of Spearman's, by what is shared, where no setting is repeated: else the levels have it.
    shared: Mapping[str, Correlation] = dataclasses.field(default_factory=dict)
    holm: Mapping[str, float] = dataclasses.field(default_factory=dict)  # corrected p by kind
    verdict: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether it is clearly associated with the target, after Holm's correction."""
        return self.verdict.startswith(FINDINGS)

    def to_dict(self) -> dict[str, Any]:
        """What it is judged by; all other intervals apart, under names that say what they count."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        corrected = fields.pop("holm")
        judged = {"judged": fields.pop("judged"), "p_holm": corrected.pop(JUDGED, None)}
        runs = {name: fields.pop(name) for name in AS_IF_INDEPENDENT} | {"holm": corrected}
        parts = {name: fields.pop(name) for name in PARTS_OF_THE_JUDGED}
        return judged | fields | {"parts_of_the_judged": parts, "as_if_runs_were_independent": runs}


def plain(value: Any) -> Any:
    """Lists, dicts and strings all the way down; JSON has no nan or inf, so these are strings."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def rounded(value: float | None, digits: int = 6) -> float | None:
    """So many digits, which is more than a picture or table can show; None unless finite.

    >>> rounded(1.23456789), rounded(float("nan")), rounded(None)
    (1.23457, None, None)
    """
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def strongest_first(rows: Iterable[MeasureStatistics]) -> list[MeasureStatistics]:
    """By the size of ρ; what has none comes last."""
    return sorted(rows, key=lambda row: -abs(row.judged.value) if row.judged.cell else 1.0)


def judged_table(
    rows: Sequence[MeasureStatistics], given: Sequence[str], tests: int, outcome: str = "target"
) -> Table:
    """Spearman's ρ on every level there is, and the verdict that rests on it."""
    repeated = any(row.levels for row in rows)
    left_out = len({r.spearman.excluded for r in rows}) > 1  # a note says what all lack
    # every column with the condition under which it says something
    columns = {
        Column("measure"): True,
        Column("ρ", f"Spearman's ρ with the {outcome}, and its interval"): True,
        Column("p Holm", f"Corrected over {tests} measures"): True,
        Column("verdict", "Based on ρ, Holm's correction and the confounders", wide=True): True,
        Column("ρ given", f"With {', '.join(given)} held fixed"): bool(given),
        Column("ρ within", "Within single settings, between which nothing is compared"): repeated,
        Column("p within", "Of a permutation of runs within settings; not corrected"): repeated,
        Column("n", "Runs it is based on"): True,
        Column(
            "out", "Left out: runs without a finite number for this measure or for the outcome"
        ): left_out,
    }
    wanted = list(columns.values())
    return Table(
        [column for column, shown in columns.items() if shown],
        [[cell for cell, shown in zip(_judged(row), wanted, strict=True) if shown] for row in rows],
        id="correlations",
        title=f"Each measure with the {outcome}",
        caption="The strongest correlation comes first. Below a ρ stands its "
        f"{_level(rows)} interval.",
    )


def _judged(row: MeasureStatistics) -> list[Cell]:
    levels = row.levels.get("spearman")
    return [
        row.name,
        row.judged.cell,
        rounded(row.holm.get(JUDGED), 2),
        row.verdict + (SIGNS if levels is not None and levels.disagrees else ""),
        None if row.given is None else row.given.cell,
        None if levels is None else levels.within.cell,
        None if levels is None else rounded(levels.within.p, 2),
        row.judged.n,
        row.spearman.excluded,
    ]


def others_table(rows: Sequence[MeasureStatistics]) -> Table:
    """What has no interval."""
    columns = [
        Column("measure"),
        Column("ρ between", "Of the means of the settings"),
        Column("positive within", "Share of the settings within which ρ is above 0", digits=2),
        Column("Ψ", "τ where one setting changes, mean"),
        Column("sign error", "In the worst setting"),
        Column("sign error, mean"),
    ]
    found = [[row.name, *_other(row)] for row in rows]
    return Table(columns, found, id="others", title="Other statistics").filled()


def _other(row: MeasureStatistics) -> list[Cell]:
    levels, sign = row.levels.get("spearman"), row.sign_error
    within = None if levels is None else levels.within
    return [
        None if levels is None else alone(levels.between.value),
        within.num_positive / within.n if within is not None and within.n else None,
        alone(row.granulated.value),
        rounded(sign.robust, 2),
        rounded(sign.mean, 2),
    ]


def coefficients_table(rows: Sequence[MeasureStatistics]) -> Table:
    """All coefficients with intervals and p that take the runs as independent."""
    columns = [
        Column("measure"),
        Column("coefficient", kind="word"),
        Column("value", f"With its {_level(rows)} interval by formula"),
        Column("p", "Before Holm's correction"),
        Column("n"),
    ]
    cells: list[list[Cell]] = [
        [row.name, name, found.cell, rounded(found.p, 2), found.n]
        for row in rows
        for name, found in (
            ("Spearman ρ", row.spearman),
            ("Pearson r", row.pearson),
            ("Kendall τ", row.kendall),
        )
    ]
    return Table(columns, cells, id="coefficients", title="Coefficients over all runs")


def lines_table(rows: Sequence[MeasureStatistics], target: str = "target") -> Table:
    """The rows of Table 3 of Taleghani et al., a line for each measure."""
    columns = [
        Column("measure"),
        Column("slope", f"Of {target} ≈ slope · measure + intercept, by least squares", digits=3),
        Column("stderr (slope)", "Standard error", digits=2),
        Column("p (slope)"),
        Column("intercept", digits=3),
        Column("R²", "Share of the outcome's variance that the line explains", digits=2),
        Column("n"),
    ]
    cells: list[list[Cell]] = []
    for row in rows:
        line = row.regression
        slope = rounded(line.slope), rounded(line.slope_stderr), rounded(line.p_slope, 2)
        cells.append([row.name, *slope, rounded(line.intercept), rounded(line.r_squared), line.n])
    caption = (
        f"A straight line for each measure, {target} against measure, as in Table 3 of Taleghani "
        "et al."
    )
    return Table(
        columns, cells, id="regressions", title="Lines through the points", caption=caption
    )


def _level(rows: Sequence[MeasureStatistics]) -> str:
    return percent(rows[0].judged.confidence) if rows else ""


def alone(value: float) -> Cell:
    """A correlation of which no interval is shown."""
    return None if math.isnan(value) else CorrelationCell(value, math.nan, math.nan)


def in_blocks(table: Table, width: int) -> str:
    """Below each other, as many columns at once as are no wider; each block names the measures."""
    rows = [[column.title for column in table.headings]]
    rows += [
        [
            cell_text(cell, column) or MISSING
            for cell, column in zip(row, table.headings, strict=True)
        ]
        for row in table.rows
    ]
    shown = [i for i, column in enumerate(table.headings) if not column.wide]
    names, *columns = ([row[i] for row in rows] for i in shown)
    blocks: list[list[list[str]]] = []
    for column in columns:
        room = sum(2 + max(map(len, each)) for each in (blocks[-1] if blocks else [names]))
        if not blocks or room + max(map(len, column)) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return "\n\n".join(aligned(list(zip(*block, strict=True))) for block in blocks)
