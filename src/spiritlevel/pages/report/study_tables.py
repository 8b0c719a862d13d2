"""The tables of a study: what each measure says, lines through the points, runs, failures."""

from __future__ import annotations

from ...study.population import TARGETS, Population
from ...study.statistics import Correlation, MeasureStatistics, StudyStatistics
from ...study.statistics.text import JUDGED, percent
from ..content import Cell, Column, Section, Table, Text
from .study_numbers import number, setting
from .study_words import interval, title

COEFFICIENTS = {"pearson": "Pearson r", "spearman": "Spearman ρ", "kendall": "Kendall τ"}
TRAINED = (  # of runs that train
    Column("ended by", "Why training ended: epochs, a loss or an accuracy reached, diverged"),
    Column("epochs"),
)
OUT = Column("out", "Left out: runs without a finite number for this measure or for the outcome")


def correlations(statistics: StudyStatistics, target: str) -> Section | None:
    """Coefficients with intervals and what may be claimed from them."""
    if not statistics.measures:
        return None
    level = percent(statistics.confidence)
    given = ", ".join(statistics.confounders)
    columns = [
        Column("measure"),
        Column("verdict", "Based on Spearman's ρ, Holm's correction and the confounders"),
        Column("n", "Runs it is based on"),
        OUT,
        Column("Spearman ρ", "Rank correlation with the outcome"),
        Column(f"ρ {level}", "Interval over runs by Fisher's z, Bonett–Wright variance"),
        *(
            [Column(f"ρ {level}, settings", "Interval over settings, which the verdict rests on")]
            if statistics.settings
            else []
        ),
        Column("p Holm", f"Of ρ, corrected over {statistics.holm[JUDGED].num_tests} measures"),
        *(
            [
                Column("ρ given", f"Partial rank correlation with {given} held fixed"),
                Column(f"ρ given {level}", _how_given(statistics)),
                Column("n given", "Runs that have every confounder"),
            ]
            if statistics.confounders
            else []
        ),
        Column("Ψ", "Granulated Kendall: τ where one setting changes, averaged over settings"),
        Column("sign error", "Share of pairs ordered wrongly, in the worst change of a setting"),
        Column("mean sign error", "The same, averaged over the changes"),
    ]
    rows = [_judged(row, bool(statistics.confounders)) for row in statistics.measures.values()]
    verdicts = Table(
        columns,
        rows,
        id="correlations",
        title=f"What each measure says about the {target}",
        caption=f"{title(target)}.",
    )
    notes = Text(statistics.notes(), bullets=True)
    coefficients = _coefficients(statistics)
    return Section("correlations-section", "Correlations", [verdicts, coefficients, notes])


def _how_given(statistics: StudyStatistics) -> str:
    if statistics.settings:
        return "Interval over settings"
    return "Interval by Fisher's z, fewer degrees of freedom"


def _judged(row: MeasureStatistics, confounded: bool) -> list[Cell]:
    given = row.partial_spearman
    partial: list[Cell] = []
    if confounded:
        partial = (
            [None, None, None] if given is None else [number(given.value), interval(given), given.n]
        )
    return [
        row.name,
        row.verdict,
        row.spearman.n,
        row.spearman.excluded,
        number(row.spearman.value),
        interval(row.spearman),
        *([interval(row.judged_by)] if row.levels else []),
        number(row.holm.get(JUDGED)),
        *partial,
        number(row.granulated.value),
        number(row.sign_error.robust),
        number(row.sign_error.mean),
    ]


def _coefficients(statistics: StudyStatistics) -> Table:
    """All three coefficients, each with the formula's interval and the bootstrap's."""
    level = percent(statistics.confidence)
    bootstrapped = any(row.bootstrap for row in statistics.measures.values())
    columns = [Column("measure"), Column("n"), OUT]
    for name, letter in (name_and_letter.split() for name_and_letter in COEFFICIENTS.values()):
        columns += [Column(f"{name} {letter}"), Column(f"{level} of {letter}", "By formula")]
        if bootstrapped:
            columns.append(Column(f"{level} BCa of {letter}", "By the bootstrap"))
        columns.append(Column(f"p of {letter}", "Before Holm's correction"))
    rows = []
    for name, row in statistics.measures.items():
        cells: list[Cell] = [name, row.spearman.n, row.spearman.excluded]
        for kind in COEFFICIENTS:
            plain: Correlation = getattr(row, kind)
            cells += [number(plain.value), interval(plain)]
            if bootstrapped:
                cells.append(interval(row.bootstrap[kind]))
            cells.append(number(plain.p))
        rows.append(cells)
    return Table(
        columns, rows, id="coefficients", title="All coefficients, with both kinds of interval"
    )


def regressions(statistics: StudyStatistics, target: str) -> Section | None:
    """The rows of Table 3 of Taleghani et al., a line for each measure."""
    if not statistics.measures:
        return None
    titles = {
        "slope": f"Of {target} ≈ slope · measure + intercept, by least squares",
        "intercept": "",
        "p (slope)": "",
        "stderr (slope)": "Standard error",
        "R²": "Share of the outcome's variance that the line explains",
        "Pearson r": "",
        f"{percent(statistics.confidence)} (r)": "By Fisher's z",
        "Spearman ρ": "",
        "p (ρ)": "",
        "Kendall τ": "",
        "p (τ)": "",
        "n": "",
    }
    columns = [Column("measure"), *(Column(title, text) for title, text in titles.items()), OUT]
    rows: list[list[Cell]] = []
    for name, row in statistics.measures.items():
        line = row.regression
        values = (line.slope, line.intercept, line.p_slope, line.slope_stderr, line.r_squared)
        ranks = (line.spearman.value, line.spearman.p, line.kendall.value, line.kendall.p)
        rows.append(
            [
                name,
                *map(number, values),
                number(line.pearson.value),
                interval(line.pearson),
                *map(number, ranks),
                line.n,
                line.excluded,
            ]
        )
    caption = (
        f"A straight line for each measure, {target} against measure, as in Table 3 of Taleghani "
        "et "
        "al.; p before any correction."
    )
    lines = Table(
        columns, rows, id="regressions", title="Lines through the points", caption=caption
    )
    return Section("regressions-section", "Regression", [lines])


def runs(population: Population) -> Section:
    """Every run, and why some have no numbers."""
    outcomes = [
        name
        for name in (*population.targets, "train_loss")
        if any(name in r for r in population.rows)
    ]
    trained = population.outcomes is None  # and not given as they are
    several = len(population.machines) > 1
    columns = [
        Column("run", "Hash of its settings: the name of its checkpoint"),
        *([] if trained else [Column("network", "As the table or the folder calls it")]),
        Column("state"),
        *(Column(axis) for axis in population.varied),
        *(TRAINED if trained else ()),
        *(Column(name, _meaning(name, trained=trained)) for name in outcomes),
        Column("seconds", f"Spent on {'training and ' if trained else ''}measuring"),
        *([Column("machine", "Number in the list of machines")] if several else []),
    ]
    rows: list[list[Cell]] = [
        [
            row["run"],
            *([] if trained else [row["network"]]),
            row["status"],
            *(setting(row[axis]) for axis in population.varied),
            *([row["outcome"], row.get("epoch")] if trained else []),
            *(number(row.get(name)) for name in outcomes),
            number(row["seconds"]),
            *([row["machine"]] if several else []),
        ]
        for row in population.rows
    ]
    parts: list[Table] = [Table(columns, rows, id="runs", title=f"All {len(rows)} runs")]
    if failures := _failures(population):
        parts.insert(0, failures)
    return Section("runs-section", "Runs", parts)


def _meaning(name: str, *, trained: bool) -> str:
    return TARGETS.get(name, "At the last epoch" if trained else "")


def _failures(population: Population) -> Table | None:
    failed = [row for row in population.rows if row["status"] == "failed"]
    if not failed:
        return None
    columns = [Column("run"), *map(Column, population.varied), Column("attempts"), Column("error")]
    rows: list[list[Cell]] = [
        [
            row["run"],
            *(setting(row[axis]) for axis in population.varied),
            row["attempt"],
            row["error"],
        ]
        for row in failed
    ]
    caption = "Try them again with: spiritlevel study resume FOLDER"
    return Table(columns, rows, id="failures", title="Runs that failed", caption=caption)
