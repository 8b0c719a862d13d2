"""The statistics of a study, and what `print` shows of them: tables, verdicts and notes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...plain_text import visible
from ...records import aligned
from .clusters import doubt, may_be_alike
from .correlations import Correlation
from .granulated import GranulatedKendall
from .holm import Holm
from .intervals import percent as percent
from .levels import MIN_RUNS, Levels
from .regression import Regression
from .sign_error import SignError

FORMAT = "spiritlevel-statistics-1"
LETTERS = {"pearson": "r", "spearman": "ρ", "kendall": "τ"}
MISSING = "–"
JUDGED = "judged"  # the family of the p that verdicts rest on
RowCells = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MeasureStatistics:
    """What one measure says about the target."""

    name: str
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation
    bootstrap: Mapping[str, Correlation]  # by kind: the same with BCa intervals; may be empty
    regression: Regression
    granulated: GranulatedKendall
    sign_error: SignError
    partial_pearson: Correlation | None  # None: the study names no confounder
    partial_spearman: Correlation | None
    # By kind: within and between settings; empty where a study does not repeat its settings.
    levels: Mapping[str, Levels] = dataclasses.field(default_factory=dict)
    # Of Spearman's, by what is shared, where no setting is repeated: else the levels have it.
    shared: Mapping[str, Correlation] = dataclasses.field(default_factory=dict)
    holm: Mapping[str, float] = dataclasses.field(default_factory=dict)  # corrected p by kind
    verdict: str = ""

    @property
    def judged_by(self) -> Correlation:
        """The rank correlation that the verdict rests on: over settings, if there are any."""
        return self.levels["spearman"].clustered if self.levels else self.spearman

    @property
    def doubt(self) -> str:
        """What is shared that makes it unclear if it counts once; "" for nothing."""
        return self.levels["spearman"].doubt if self.levels else doubt(self.spearman, self.shared)


@dataclasses.dataclass(frozen=True)
class StudyStatistics:
    """Statistics of every measure of a study."""

    measures: Mapping[str, MeasureStatistics]
    n: int  # runs of the study
    without_target: int  # of these, left out everywhere
    confounders: tuple[str, ...]
    holm: Mapping[str, Holm]  # by kind of correlation
    confidence: float
    settings: int = 0  # that are repeated, so that intervals count them; 0: they count runs

    def __getitem__(self, name: str) -> MeasureStatistics:
        try:
            return self.measures[name]
        except KeyError:
            have = ", ".join(self.measures)
            raise KeyError(f"This study has no {name!r}. It has: {have}.") from None

    def __str__(self) -> str:
        return visible(text_of(self), keep="\n")

    def notes(self) -> list[str]:
        """How the tables are to be read, and what is missing from them."""
        return notes_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON; non-finite floats become strings."""
        return {"format": FORMAT} | {
            field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """The statistics as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


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


def text_of(statistics: StudyStatistics) -> str:
    """The whole text: the table to read first, the verdicts, then details and notes."""
    rows = statistics.measures.values()
    verdicts = [f"{row.name}: {row.verdict}." for row in rows]
    parts = [_overview(statistics), "\n".join(verdicts)]
    if rows:
        parts += [_regressions(statistics), _p_values(statistics)]
    if statistics.settings:
        parts.append(_levels(statistics))
    if any(row.bootstrap for row in rows):
        parts.append(_bootstraps(statistics))
    if any(row.partial_pearson for row in rows):
        parts.append(_partials(statistics))
    return "\n\n".join([*parts, "\n".join(statistics.notes())])


def notes_of(statistics: StudyStatistics) -> list[str]:
    """How the tables are to be read, and what is missing from them."""
    lines = [
        f"{statistics.n} runs, {statistics.without_target} of them without a finite target; "
        "'out' counts the runs left out for a measure. "
        f"Brackets: {percent(statistics.confidence)} intervals.",
        "The verdict rests on Spearman's ρ and its p, corrected over "
        f"{statistics.holm[JUDGED].num_tests} measures by Holm. {_counted(statistics)}",
    ]
    lines += [
        f"{row.name}: {row.levels['spearman'].sentence}"
        for row in statistics.measures.values()
        if row.levels and row.levels["spearman"].disagrees
    ]
    levels = [row.levels["spearman"] for row in statistics.measures.values() if row.levels]
    if levels and not any(each.within.n for each in levels):
        lines.append(
            f"Nothing is said within settings: that needs {MIN_RUNS} runs of one setting with "
            "different numbers."
        )
    lines += _doubts(statistics)
    if statistics.confounders:
        lines.append(f"Confounders held fixed: {', '.join(statistics.confounders)}.")
    for row in statistics.measures.values():
        lines += [f"{row.name}, {what}: {reason}." for what, reason in _reasons(row)]
    return lines


def _doubts(statistics: StudyStatistics) -> list[str]:
    """By what settings share: which findings are unclear if those that share it count once."""
    doubted: dict[str, list[str]] = {}
    for row in statistics.measures.values():
        if row.doubt:
            doubted.setdefault(row.doubt, []).append(row.name)
    said = [
        f"{may_be_alike(shared)}. If they count once, the intervals of these contain 0: "
        f"{', '.join(names)}."
        for shared, names in doubted.items()
    ]
    found = [row.levels["spearman"] for row in statistics.measures.values() if row.levels]
    return [*said, *dict.fromkeys(each.blind_spot for each in found if each.blind_spot)]


def _counted(statistics: StudyStatistics) -> str:
    """What intervals and p take as independent."""
    if not statistics.settings:
        return (
            "Intervals and p take the runs as independent draws: there are not several settings, "
            "or none is repeated."
        )
    return (
        f"The networks of one setting are alike, so its interval and p count the "
        f"{statistics.settings} settings and not the runs, and so do those given confounders. "
        "Beside them stand intervals that take the runs as independent, which are too narrow."
    )


def _reasons(row: MeasureStatistics) -> list[tuple[str, str]]:
    """What qualifies single numbers; what the verdict says already is not said again."""
    reasons = [("Ψ", row.granulated.reason), ("sign error", row.sign_error.reason)]
    told = {"", row.spearman.reason}
    partials = (("ρ", row.partial_spearman), ("r", row.partial_pearson))
    for letter, partial in partials:
        if partial is not None and partial.reason not in told:
            reasons.append((f"{letter} given confounders", partial.reason))
            told.add(partial.reason)
    reasons += [
        (f"BCa of {LETTERS[kind]}", correlation.reason)
        for kind, correlation in row.bootstrap.items()
        if correlation.reason != row.spearman.reason
    ]
    return [(what, reason) for what, reason in reasons if reason]


def _overview(statistics: StudyStatistics) -> str:
    heading = ("measure", "n", "out", "Pearson r", "Spearman ρ", "p Holm", "Kendall τ", "Ψ")
    partial = ("ρ given confounders",) if statistics.confounders else ()
    rows: list[RowCells] = [
        (*heading, "sign error max (mean)", *partial),
        *(_cells(row, partial=bool(partial)) for row in statistics.measures.values()),
    ]
    return aligned(rows)


def _cells(row: MeasureStatistics, *, partial: bool) -> RowCells:
    cells = (
        row.name,
        str(row.spearman.n),
        str(row.spearman.excluded),
        _cell(row.pearson),
        _cell(row.spearman),
        _number(row.holm.get(JUDGED, math.nan), ".2g"),
        _cell(row.kendall),
        _number(row.granulated.value, "+.2f"),
        f"{_number(row.sign_error.robust, '.2f')} ({_number(row.sign_error.mean, '.2f')})",
    )
    if not partial:
        return cells
    given = row.partial_spearman
    if given is None:
        return (*cells, MISSING)
    # A confounder may be missing where the measure is not: then this number rests on fewer runs.
    fewer = "" if given.n == row.spearman.n else f" n={given.n}"
    return (*cells, _cell(given) + fewer)


def _regressions(statistics: StudyStatistics) -> str:
    def cells(row: MeasureStatistics) -> RowCells:
        line = row.regression
        return (
            str(line.n),
            _number(line.slope, ".4g"),
            _number(line.intercept, ".4g"),
            _number(line.slope_stderr, ".3g"),
            _number(line.p_slope, ".2g"),
            _number(line.r_squared, ".4f"),
        )

    return _table(
        statistics,
        "Regression: target ≈ slope · measure + intercept (Taleghani et al., Table 3)",
        ("n", "slope", "intercept", "std error", "p slope", "R²"),
        cells,
    )


def _p_values(statistics: StudyStatistics) -> str:
    def cells(row: MeasureStatistics) -> RowCells:
        numbers = [str(row.spearman.n)]
        for kind in LETTERS:
            plain: Correlation = getattr(row, kind)
            numbers += _p_and_holm(row, kind, plain)
        return tuple(numbers)

    titles = [title for letter in LETTERS.values() for title in (f"p {letter}", "Holm")]
    return _table(statistics, "p of each correlation, and corrected by Holm", ("n", *titles), cells)


def _levels(statistics: StudyStatistics) -> str:
    def cells(row: MeasureStatistics) -> RowCells:
        found = row.levels["spearman"]
        inside = found.within
        return (
            str(found.pooled.n),
            _cell(found.pooled),
            _ends(found.clustered),
            found.over_groups or MISSING,
            _cell(found.between),
            MISSING if math.isnan(inside.value) else str(inside),
            f"{inside.num_positive} of {inside.n}",
        )

    level = percent(statistics.confidence)
    return _table(
        statistics,
        f"Spearman ρ within and between {statistics.settings} settings",
        (
            *("n", "all runs", f"{level} over settings", f"{level} over groups of them"),
            *("between settings", "within, mean", "positive within"),
        ),
        cells,
    )


def _bootstraps(statistics: StudyStatistics) -> str:
    def cells(row: MeasureStatistics) -> RowCells:
        return (str(row.spearman.n), *(_ends(row.bootstrap.get(kind)) for kind in LETTERS))

    return _table(
        statistics,
        f"{percent(statistics.confidence)} intervals of the bootstrap (BCa)",
        ("n", "Pearson r", "Spearman ρ", "Kendall τ"),
        cells,
    )


def _partials(statistics: StudyStatistics) -> str:
    def cells(row: MeasureStatistics) -> RowCells:
        given = {name: getattr(row, name) for name in ("partial_pearson", "partial_spearman")}
        numbers = [MISSING if row.partial_pearson is None else str(row.partial_pearson.n)]
        for kind, correlation in given.items():
            _, corrected = _p_and_holm(row, kind, correlation)
            numbers += [MISSING if correlation is None else _cell(correlation), corrected]
        return tuple(numbers)

    # A measure that is a confounder itself is judged given the others.
    return _table(
        statistics,
        f"Given {', '.join(statistics.confounders)}: partial correlations, p corrected by Holm",
        ("n", "Pearson r", "p Holm", "Spearman ρ", "p Holm"),
        cells,
    )


def _table(
    statistics: StudyStatistics,
    heading: str,
    titles: Sequence[str],
    cells: Callable[[MeasureStatistics], RowCells],
) -> str:
    rows = [(row.name, *cells(row)) for row in statistics.measures.values()]
    return f"{heading}\n{aligned([('measure', *titles), *rows])}"


def _p_and_holm(
    row: MeasureStatistics, kind: str, correlation: Correlation | None
) -> tuple[str, str]:
    p = math.nan if correlation is None else correlation.p
    return _number(p, ".2g"), _number(row.holm.get(kind, math.nan), ".2g")


def _ends(correlation: Correlation | None) -> str:
    if correlation is None or math.isnan(correlation.low):
        return MISSING
    return f"[{correlation.low:+.2f}, {correlation.high:+.2f}]"


def _cell(correlation: Correlation) -> str:
    return MISSING if math.isnan(correlation.value) else str(correlation)


def _number(value: float, form: str) -> str:
    return MISSING if math.isnan(value) else format(value, form)
