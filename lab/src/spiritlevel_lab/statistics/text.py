"""The statistics of a study, and what `print` shows of them: tables, verdicts and notes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spiritlevel.ground.plain_text import visible
from spiritlevel.records.notebooks import aligned

from .confounding import Confounding
from .correlations import FINDINGS, Correlation, Estimated
from .differences import Strongest
from .granulated import GranulatedKendall
from .holm import Holm
from .intervals import percent as percent
from .judged import Judged
from .levels import MIN_RUNS, Levels
from .regression import Regression, Tails
from .sign_error import SignError

FORMAT = "spiritlevel-statistics-2"
MISSING = "–"
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


@dataclasses.dataclass(frozen=True)
class StudyStatistics:
    """Statistics of every measure of a study."""

    measures: Mapping[str, MeasureStatistics]
    n: int  # runs of the study
    without_target: int  # of these, left out everywhere
    confounders: tuple[str, ...]
    holm: Mapping[str, Holm]  # by kind of correlation
    confidence: float
    strongest: Strongest | None = None  # None: fewer than two measures have a correlation
    settings: int = 0  # that are repeated, so that intervals count them; 0: they count runs
    not_judged: str = ""  # which networks are not judged because of their training, as a sentence

    def __getitem__(self, name: str) -> MeasureStatistics:
        try:
            return self.measures[name]
        except KeyError:
            have = ", ".join(self.measures)
            raise KeyError(f"This study has no {name!r}. It has: {have}.") from None

    def __str__(self) -> str:
        return visible("\n\n".join([*overview(self), "\n".join(self.notes())]), keep="\n")

    def details(self, width: int = 100) -> str:
        """Every other number, in tables and lines that are no wider."""
        return visible("\n\n".join(details_of(self, width)), keep="\n")

    def notes(self) -> list[str]:
        """How the tables are to be read, and what is missing from them."""
        return notes_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON; non-finite floats become strings."""
        fields = {
            field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }
        measures = {name: row.to_dict() for name, row in self.measures.items()}
        return {"format": FORMAT} | fields | {"measures": measures}

    def to_json(self, *, indent: int | None = 2) -> str:
        """The statistics as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


Cell = Callable[[MeasureStatistics], str]
Column = tuple[str, Cell]  # its title, and what it says of a measure


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


def overview(statistics: StudyStatistics, width: int = 100) -> list[str]:
    """The table to read first, and the verdicts."""
    verdicts: dict[str, list[str]] = {}
    for row in statistics.measures.values():
        verdicts.setdefault(row.verdict, []).append(row.name)
    said = [
        _wrapped(f"{verdict}: {', '.join(names)}.", width) for verdict, names in verdicts.items()
    ]
    table = _table(statistics, OVERVIEW_GIVEN if statistics.confounders else OVERVIEW, width)
    return [table, "\n".join(said)]


def details_of(statistics: StudyStatistics, width: int = 100) -> list[str]:
    """Levels, other statistics, what would hold if the runs were independent; and the notes."""
    tables: list[tuple[str, Sequence[Column]]] = [("Other statistics", OTHERS)]
    if statistics.settings:
        tables.insert(0, (f"Within and between {statistics.settings} settings", LEVELS))
    parts = [
        *overview(statistics, width),
        *(f"{title}\n{_table(statistics, columns, width)}" for title, columns in tables),
        _wrapped(if_independent(statistics), width),
        _table(statistics, INDEPENDENT, width),
    ]
    title = "Lines: target ≈ slope · measure + intercept (Taleghani et al., Table 3)"
    lines = f"{_wrapped(title, width)}\n{_table(statistics, REGRESSION, width)}"
    notes = "\n".join(_wrapped(note, width) for note in statistics.notes())
    return [*parts, lines, notes] if statistics.measures else [notes]


def if_independent(statistics: StudyStatistics) -> str:
    """The heading of all that takes the runs as independent."""
    which = ", which they are not" if statistics.settings else ""
    return (
        f"If all runs were independent{which}: other coefficients, their "
        f"{percent(statistics.confidence)} intervals and p before any correction. Nothing is "
        "concluded from these."
    )


def notes_of(statistics: StudyStatistics) -> list[str]:
    """How the tables are to be read, and what is missing from them."""
    lines = [
        f"{statistics.n} runs, {statistics.without_target} of them without a finite target; 'out' "
        "counts the runs left out for a measure. "
        f"Brackets: {percent(statistics.confidence)} intervals.",
        *([statistics.not_judged] if statistics.not_judged else []),
        f"{_rests(statistics)} {_counted(statistics)}",
    ]
    lines += [
        f"{row.name}: {said}" for row in statistics.measures.values() if (said := signs_differ(row))
    ]
    levels = [row.levels["spearman"] for row in statistics.measures.values() if row.levels]
    if levels and not any(each.within.n for each in levels):
        lines.append(
            f"Nothing is said within settings: that needs {MIN_RUNS} runs of one setting with "
            "different numbers."
        )
    lines += _doubts(statistics)
    if statistics.strongest is not None:
        lines.append(with_minus(statistics.strongest.sentence))
    if statistics.confounders:
        lines.append(f"Confounders held fixed: {', '.join(statistics.confounders)}.")
    for row in statistics.measures.values():
        lines += [f"{row.name}, {what}: {reason}." for what, reason in _reasons(row)]
    return lines


def signs_differ(row: MeasureStatistics) -> str:
    """That the sign within settings is another than between them or over all; "" if it is not."""
    levels = row.levels.get("spearman")
    if levels is None or not levels.disagrees:
        return ""
    within, between = levels.within, levels.between
    return (
        "The signs differ between the levels (Simpson's paradox): within one setting ρ is "
        f"{_coefficient(within)}, positive in {within.num_positive} of {within.n} settings; "
        f"between the means of {between.n} settings it is {_value(between.value)}; over all runs "
        f"{_coefficient(row.judged)}. What holds between settings need not hold between networks "
        "of one setting."
    )


def _doubts(statistics: StudyStatistics) -> Iterator[str]:
    """Heavy tails, and what error in the confounders would do."""
    heavy = [
        f"{row.name} ({with_minus(row.tails.coefficients)})"
        for row in statistics.measures.values()
        if row.tails.heavy
    ]
    if heavy:
        yield (
            f"Heavy tails: {', '.join(heavy)}. A few runs may decide Pearson's r and straight "
            "lines there; what judges are ranks."
        )
    for row in statistics.measures.values():
        if row.is_finding and row.confounding is not None and row.confounding.sentence:
            yield f"{row.name}, {row.confounding.sentence}"


def with_minus(text: str) -> str:
    """The sign of every number as tables have it.

    >>> with_minus("layer-2 differs by -0.02 [-0.10, +0.06]")
    'layer-2 differs by −0.02 [−0.10, +0.06]'
    """
    return re.sub(r"(?<=[ \[])-(?=\d)", "−", text)


def _rests(statistics: StudyStatistics) -> str:
    if not (tests := statistics.holm[JUDGED].num_tests):
        return "No measure has an interval, so none is judged."
    return (
        "The verdict rests on Spearman's ρ, on its interval and on its p, corrected over "
        f"{tests} measures by Holm."
    )


def _counted(statistics: StudyStatistics) -> str:
    """What intervals and p take as independent."""
    if not statistics.settings:
        return (
            "Its interval is the widest of those over runs and over groups that share a value: "
            "there are not several settings, or none is repeated."
        )
    counted: dict[str, list[str]] = {}
    for row in statistics.measures.values():
        if row.judged.counted:
            counted.setdefault(row.judged.counted, []).append(row.name)
    named = "; ".join(f"{how} ({', '.join(names)})" for how, names in counted.items())
    said = f" Here it is {named if len(counted) > 1 else ''.join(counted)}." if counted else ""
    return (
        "Networks of one setting are alike, and so may be settings that share a value and runs "
        f"that share a seed. So its interval is the widest of those over the {statistics.settings} "
        f"settings, over such groups, and over seeds, and so is that given confounders.{said}"
    )


def _reasons(row: MeasureStatistics) -> list[tuple[str, str]]:
    """What qualifies single numbers; what the verdict says already is not said again."""
    reasons = [("Ψ", row.granulated.reason), ("sign error", row.sign_error.reason)]
    told = {"", row.spearman.reason, row.judged.reason}
    partials = (("ρ", row.partial_spearman), ("r", row.partial_pearson))
    for letter, partial in partials:
        if partial is not None and partial.reason not in told:
            reasons.append((f"{letter} given confounders", partial.reason))
            told.add(partial.reason)
    return [(what, reason) for what, reason in reasons if reason]


# -- cells of the tables ---------------------------------------------------------------------------


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)


def _table(statistics: StudyStatistics, columns: Sequence[Column], width: int) -> str:
    """Below each other, as many columns at once as are no wider; each block names the measures."""
    rows = list(statistics.measures.values())
    names = ["measure", *(row.name for row in rows)]
    blocks: list[list[list[str]]] = []
    for title, cell in columns:
        column = [title, *map(cell, rows)]
        room = sum(2 + max(map(len, each)) for each in (blocks[-1] if blocks else [names]))
        if not blocks or room + max(map(len, column)) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return "\n\n".join(aligned(list(zip(*block, strict=True))) for block in blocks)


def _number(value: float, form: str) -> str:
    return MISSING if math.isnan(value) else format(value, form).replace("-", "−")


def _value(value: float) -> str:
    return _number(value, "+.2f")


def _coefficient(found: Estimated | None) -> str:
    return MISSING if found is None or found.cell is None else str(found.cell)


def _given(row: MeasureStatistics) -> str:
    """The partial correlation; on fewer runs where a confounder is missing and the measure not."""
    fewer = "" if row.given is None or row.given.n == row.judged.n else f" n={row.given.n}"
    return _coefficient(row.given) + fewer


def _line(field: str, form: str) -> Cell:
    return lambda row: _number(getattr(row.regression, field), form)


def _within(cell: Callable[[Levels], str]) -> Cell:
    return lambda row: cell(row.levels["spearman"])


OVERVIEW: list[Column] = [
    ("ρ with the target", lambda row: _coefficient(row.judged)),
    ("p Holm", lambda row: _number(row.holm.get(JUDGED, math.nan), ".2g")),
    ("n", lambda row: str(row.judged.n)),
    ("out", lambda row: str(row.spearman.excluded)),
]
OVERVIEW_GIVEN = [*OVERVIEW, ("ρ given confounders", _given)]
LEVELS: list[Column] = [
    ("within settings", _within(lambda found: _coefficient(found.within))),
    ("p", _within(lambda found: _number(found.within.p, ".2g"))),
    ("positive", _within(lambda found: f"{found.within.num_positive} of {found.within.n}")),
    ("between settings", _within(lambda found: _value(found.between.value))),
]
OTHERS: list[Column] = [
    ("Ψ", lambda row: _value(row.granulated.value)),
    ("sign error, worst", lambda row: _number(row.sign_error.robust, ".2f")),
    ("sign error, mean", lambda row: _number(row.sign_error.mean, ".2f")),
]
INDEPENDENT: list[Column] = [
    ("Spearman ρ", lambda row: _coefficient(row.spearman)),
    ("p ρ", lambda row: _number(row.spearman.p, ".2g")),
    ("Pearson r", lambda row: _coefficient(row.pearson)),
    ("p r", lambda row: _number(row.pearson.p, ".2g")),
    ("Kendall τ", lambda row: _coefficient(row.kendall)),
    ("p τ", lambda row: _number(row.kendall.p, ".2g")),
]
REGRESSION: list[Column] = [
    ("slope", _line("slope", ".3g")),
    ("std error", _line("slope_stderr", ".2g")),
    ("p slope", _line("p_slope", ".2g")),
    ("intercept", _line("intercept", ".3g")),
    ("R²", _line("r_squared", ".2f")),
    ("n", lambda row: str(row.regression.n)),
]
