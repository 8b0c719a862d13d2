"""The statistics of a study, and what `print` shows of them: tables, verdicts and notes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spiritlevel.ground.plain_text import visible
from spiritlevel.records.notebooks import aligned

from .confounding import Confounding
from .correlations import Correlation
from .differences import Strongest
from .granulated import GranulatedKendall
from .holm import Holm
from .intervals import percent as percent
from .judged import Judged
from .levels import MIN_RUNS, Levels
from .regression import Regression
from .sign_error import SignError
from .tails import Tails

FORMAT = "spiritlevel-statistics-1"
LETTERS = {"pearson": "r", "spearman": "ρ", "kendall": "τ"}
MISSING = "–"
JUDGED = "judged"  # the family of the p that verdicts rest on


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


def text_of(statistics: StudyStatistics) -> str:
    """The whole text: the table to read first, the verdicts, then details and notes."""
    rows = statistics.measures.values()
    level = percent(statistics.confidence)
    tables: list[tuple[str, Sequence[Column]]] = []
    if rows:
        title = "Regression: target ≈ slope · measure + intercept (Taleghani et al., Table 3)"
        tables.append((title, REGRESSION))
        tables.append(("p of each correlation, and corrected by Holm", P_VALUES))
    if statistics.settings:
        title = f"Spearman ρ within and between {statistics.settings} settings"
        tables.append((title, _levels(level)))
    if any(row.bootstrap for row in rows):
        tables.append((f"{level} intervals of the bootstrap (BCa)", BOOTSTRAPS))
    if any(row.partial_pearson for row in rows):
        given = ", ".join(statistics.confounders)
        tables.append((f"Given {given}: partial correlations, p corrected by Holm", PARTIALS))
    overview = [*OVERVIEW, ("ρ given confounders", _given)] if statistics.confounders else OVERVIEW
    verdicts = "\n".join(f"{row.name}: {row.verdict}." for row in rows)
    details = [f"{title}\n{_table(statistics, columns)}" for title, columns in tables]
    parts = [_table(statistics, overview), verdicts, *details, "\n".join(statistics.notes())]
    return "\n\n".join(parts)


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
    if statistics.strongest is not None:
        lines.append(statistics.strongest.sentence)
    if statistics.confounders:
        lines.append(f"Confounders held fixed: {', '.join(statistics.confounders)}.")
    for row in statistics.measures.values():
        lines += [f"{row.name}, {what}: {reason}." for what, reason in _reasons(row)]
    return lines


def _doubts(statistics: StudyStatistics) -> list[str]:
    """What takes a finding away, where it is not said with the levels; heavy tails; confounders."""
    said = []
    for row in statistics.measures.values():
        levels = row.levels.get("spearman")
        doubt = "" if levels is None or levels.disagrees else levels.doubt
        confounding = "" if row.confounding is None else row.confounding.sentence
        said += [f"{row.name}: {each}" for each in (doubt, row.tails.sentence, confounding) if each]
    return said


def _counted(statistics: StudyStatistics) -> str:
    """What intervals and p take as independent."""
    if not statistics.settings:
        return (
            "Its interval is the widest of those over runs and over groups that share a value: "
            "there are not several settings, or none is repeated."
        )
    return (
        f"Networks of one setting are alike, and so may be settings that share a value and runs "
        f"that share a seed. So its interval is the widest of those over the {statistics.settings} "
        "settings, over such groups, and over seeds, and so is that given confounders. Intervals "
        "that take the runs as independent are too narrow."
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


# -- cells of the tables ---------------------------------------------------------------------------


def _table(statistics: StudyStatistics, columns: Sequence[Column]) -> str:
    titles = ("measure", *(title for title, _ in columns))
    rows = [(row.name, *(cell(row) for _, cell in columns)) for row in statistics.measures.values()]
    return aligned([titles, *rows])


def _number(value: float, form: str) -> str:
    return MISSING if math.isnan(value) else format(value, form)


def _coefficient(found: Correlation | None) -> str:
    return MISSING if found is None or math.isnan(found.value) else str(found)


def _ends(found: Correlation | None) -> str:
    if found is None or math.isnan(found.low):
        return MISSING
    return f"[{found.low:+.2f}, {found.high:+.2f}]"


def _p_of(kind: str) -> Cell:
    return lambda row: _number(getattr(row, kind).p, ".2g")


def _holm_of(kind: str) -> Cell:
    return lambda row: _number(row.holm.get(kind, math.nan), ".2g")


def _bca_of(kind: str) -> Cell:
    return lambda row: _ends(row.bootstrap.get(kind))


def _line(field: str, form: str) -> Cell:
    return lambda row: _number(getattr(row.regression, field), form)


def _errors(row: MeasureStatistics) -> str:
    return f"{_number(row.sign_error.robust, '.2f')} ({_number(row.sign_error.mean, '.2f')})"


def _given(row: MeasureStatistics) -> str:
    """The partial correlation; on fewer runs where a confounder is missing and the measure not."""
    found = row.partial_spearman
    fewer = "" if found is None or found.n == row.spearman.n else f" n={found.n}"
    return _coefficient(found) + fewer


def _levels(level: str) -> list[Column]:
    def of(cell: Callable[[Levels], str]) -> Cell:
        return lambda row: cell(row.levels["spearman"])

    return [
        ("n", of(lambda found: str(found.pooled.n))),
        ("all runs", of(lambda found: _coefficient(found.pooled))),
        (f"{level} over settings", of(lambda found: _ends(found.clustered))),
        (f"{level} over groups of them", of(lambda found: found.over_groups or MISSING)),
        ("between settings", of(lambda found: _coefficient(found.between))),
        (
            "within, mean",
            of(lambda found: MISSING if math.isnan(found.within.value) else str(found.within)),
        ),
        ("positive within", of(lambda found: f"{found.within.num_positive} of {found.within.n}")),
    ]


_NUM: Column = ("n", lambda row: str(row.spearman.n))
OVERVIEW: list[Column] = [
    _NUM,
    ("out", lambda row: str(row.spearman.excluded)),
    ("Pearson r", lambda row: _coefficient(row.pearson)),
    ("Spearman ρ", lambda row: _coefficient(row.spearman)),
    ("p Holm", _holm_of(JUDGED)),
    ("Kendall τ", lambda row: _coefficient(row.kendall)),
    ("Ψ", lambda row: _number(row.granulated.value, "+.2f")),
    ("sign error max (mean)", _errors),
]
REGRESSION: list[Column] = [
    ("n", lambda row: str(row.regression.n)),
    ("slope", _line("slope", ".4g")),
    ("intercept", _line("intercept", ".4g")),
    ("std error", _line("slope_stderr", ".3g")),
    ("p slope", _line("p_slope", ".2g")),
    ("R²", _line("r_squared", ".4f")),
]
P_VALUES: list[Column] = [_NUM]
for _kind, _letter in LETTERS.items():
    P_VALUES += [(f"p {_letter}", _p_of(_kind)), ("Holm", _holm_of(_kind))]
BOOTSTRAPS: list[Column] = [
    _NUM,
    ("Pearson r", _bca_of("pearson")),
    ("Spearman ρ", _bca_of("spearman")),
    ("Kendall τ", _bca_of("kendall")),
]
PARTIALS: list[Column] = [  # a measure that is a confounder itself is judged given the others
    ("n", lambda row: MISSING if row.partial_pearson is None else str(row.partial_pearson.n)),
    ("Pearson r", lambda row: _coefficient(row.partial_pearson)),
    ("p Holm", _holm_of("partial_pearson")),
    ("Spearman ρ", lambda row: _coefficient(row.partial_spearman)),
    ("p Holm", _holm_of("partial_spearman")),
]
