"""The statistics of a study, and what `print` shows of them: tables, verdicts and notes."""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from spiritlevel.ground.plain_text import visible
from spiritlevel.records.content import Table

from .differences import Strongest
from .holm import Holm
from .intervals import percent as percent
from .levels import MIN_RUNS
from .tables import (
    JUDGED,
    MeasureStatistics,
    alone,
    coefficients_table,
    in_blocks,
    judged_table,
    lines_table,
    others_table,
    plain,
    strongest_first,
)

FORMAT = "spiritlevel-statistics-2"


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
        return visible("\n\n".join([*self._overview(), "\n".join(self.notes())]), keep="\n")

    def _overview(self, width: int = 100) -> list[str]:
        """The table to read first, and the verdicts."""
        verdicts: dict[str, list[str]] = {}
        for row in self.measures.values():
            verdicts.setdefault(row.verdict, []).append(row.name)
        said = [_wrapped(f"{each}: {', '.join(names)}.", width) for each, names in verdicts.items()]
        return [in_blocks(self.judged(), width), "\n".join(said)]

    @property
    def rows(self) -> list[MeasureStatistics]:
        """The strongest measure first."""
        return strongest_first(self.measures.values())

    def judged(self, outcome: str = "target") -> Table:
        """The table to read first; `outcome` is what it calls the target."""
        return judged_table(self.rows, self.confounders, self.holm[JUDGED].num_tests, outcome)

    def details(self, width: int = 100) -> str:
        """Every other number, in tables and lines that are no wider."""
        parts = ["\n".join(_wrapped(note, width) for note in self.notes())]
        if self.measures:
            other, lines = others_table(self.rows), lines_table(self.rows)
            parts = [
                *self._overview(width),
                *([f"{other.title}\n{in_blocks(other, width)}"] if other.columns[1:] else []),
                _wrapped(if_independent(self), width),
                in_blocks(coefficients_table(self.rows), width),
                f"{_wrapped(lines.caption, width)}\n{in_blocks(lines, width)}",
                *parts,
            ]
        return visible("\n\n".join(parts), keep="\n")

    def notes(self) -> list[str]:
        """How the tables are to be read, and what is missing from them."""
        lines = [
            f"{self.n} runs, {self.without_target} of them without a finite target; 'out' "
            "counts the runs left out for a measure. "
            f"Brackets: {percent(self.confidence)} intervals.",
            *([self.not_judged] if self.not_judged else []),
            f"{_rests(self)} {_counted(self)}",
        ]
        lines += [
            f"{row.name}: {said}" for row in self.measures.values() if (said := signs_differ(row))
        ]
        levels = [row.levels["spearman"] for row in self.measures.values() if row.levels]
        if levels and not any(each.within.n for each in levels):
            lines.append(
                f"Nothing is said within settings: that needs {MIN_RUNS} runs of one setting with "
                "different numbers."
            )
        lines += _doubts(self)
        if self.strongest is not None:
            lines.append(with_minus(self.strongest.sentence))
        if self.confounders:
            lines.append(f"Confounders held fixed: {', '.join(self.confounders)}.")
        for row in self.measures.values():
            lines += [f"{row.name}, {what}: {reason}." for what, reason in _reasons(row)]
        return lines

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


def if_independent(statistics: StudyStatistics) -> str:
    """The heading of all that takes the runs as independent."""
    which = ", which they are not" if statistics.settings else ""
    return (
        f"If all runs were independent{which}: other coefficients, their "
        f"{percent(statistics.confidence)} intervals and p before any correction. Nothing is "
        "concluded from these."
    )


def signs_differ(row: MeasureStatistics) -> str:
    """That the sign within settings is another than between them or over all; "" if it is not."""
    levels = row.levels.get("spearman")
    if levels is None or not levels.disagrees:
        return ""
    within, between = levels.within, levels.between
    return (
        "The signs differ between the levels (Simpson's paradox): within one setting ρ is "
        f"{within.cell}, positive in {within.num_positive} of {within.n} settings; "
        f"between the means of {between.n} settings it is {alone(between.value)}; over all runs "
        f"{row.judged.cell}. What holds between settings need not hold between networks "
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
    if row.given is not None and row.given.n < row.judged.n:
        reasons.append(("ρ given confounders", f"over {row.given.n} runs of {row.judged.n}"))
    told = {"", row.spearman.reason, row.judged.reason}
    partials = (("ρ", row.partial_spearman), ("r", row.partial_pearson))
    for letter, partial in partials:
        if partial is not None and partial.reason not in told:
            reasons.append((f"{letter} given confounders", partial.reason))
            told.add(partial.reason)
    return [(what, reason) for what, reason in reasons if reason]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)
