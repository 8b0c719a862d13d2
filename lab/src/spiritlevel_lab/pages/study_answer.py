"""What a study found, why, and over which networks: the same sentences wherever it is shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from spiritlevel.pages.report.numbers import listing

from ..population.outcome_names import WORDS
from ..population.population import Population
from ..population.population_statistics import side_by_side
from ..statistics import Association, Associations, MeasureStatistics, StudyStatistics
from ..statistics.tables import JUDGED
from ..statistics.text import percent, signs_differ

SMALLEST_P = 1e-12  # beyond, the assumptions behind a p are surely further off than the p


@dataclasses.dataclass(frozen=True)
class StudyAnswer:
    """Sentences to lead with, and the associations that they rest on."""

    found: str
    why: str
    judged: str  # networks and settings, and networks that are shown and not judged
    outcomes: Mapping[str, Associations]  # the target first, if it is one
    best: MeasureStatistics | None  # the clearest, or what comes closest
    reading: str  # how the numbers are to be read

    @property
    def sentences(self) -> list[str]:
        """What stands below the first."""
        return [text for text in (self.why, self.judged) if text]


def answer(population: Population, statistics: StudyStatistics, target: str) -> StudyAnswer:
    """What the measures say about the target, and about the other outcomes that are known."""
    outcomes = side_by_side(population, statistics, target)
    best = clearest(statistics)
    return StudyAnswer(
        found=_found(population, statistics, outcomes, best, target),
        why="" if best is None else _why(statistics, best, target),
        judged=_judged(population, statistics),
        outcomes=outcomes,
        best=best,
        reading=(
            "ρ is Spearman's rank correlation, from −1 to 1 (0: unrelated); p is corrected by Holm "
            f"over the measures, for each outcome; brackets are {percent(statistics.confidence)} "
            "intervals, the widest of those that count what networks share; * is clear."
        ),
    )


def clearest(statistics: StudyStatistics) -> MeasureStatistics | None:
    """A finding if there is one; the smallest corrected p, then the smallest p, then the largest ρ.

    None where no measure was taken.
    """

    def doubt(row: MeasureStatistics) -> tuple[bool, float, float, float]:
        p, size = row.judged.p, abs(row.judged.value)
        known = row.holm.get(JUDGED, 2.0), 2.0 if math.isnan(p) else p
        return not row.is_finding, *known, math.inf if math.isnan(size) else -size

    return min(statistics.measures.values(), key=doubt, default=None)


def in_words(outcome: str) -> str:
    """An outcome in a sentence; a measure, or a number of the study's own, by its name."""
    return WORDS.get(outcome, outcome)


def chance(p: float) -> str:
    """A p-value as text.

    >>> chance(0.0312), chance(0.0)
    ('p = 0.031', 'p < 1e-12')
    """
    return f"p < {SMALLEST_P:g}" if p < SMALLEST_P else f"p = {short_p(p)}"


def short_p(p: float) -> str:
    """Its two digits, which is more than is known of it."""
    return f"{p:.2g}".replace("-", "−")


def _found(
    population: Population,
    statistics: StudyStatistics,
    outcomes: Mapping[str, Associations],
    best: MeasureStatistics | None,
    target: str,
) -> str:
    if best is None:
        return "No run of this study was measured: nothing can be said about the measures."
    if population.mostly_missed:
        return f"Nothing can be said about the measures: {population.not_judged.split(':')[0]}."
    if math.isnan(best.judged.p):
        reason = best.judged.reason
        return f"No measure can be judged by the {in_words(target)}: {reason}."
    clear = {o: [n for n, each in found.items() if each.is_clear] for o, found in outcomes.items()}
    number = len(statistics.measures)
    none = "The one measure is not" if number == 1 else f"None of {number} measures is"
    if not any(clear.values()):
        every = listing([f"the {in_words(outcome)}" for outcome in outcomes]).replace(
            " and ", " or "
        )
        return f"{none} clearly associated with {every}."
    if not clear[target]:
        said = f"{none} clearly associated with the {in_words(target)}"
    else:
        larger = "larger" if best.judged.value > 0 else "smaller"
        said = f"Networks with a larger {best.name} have a {larger} {in_words(target)}"
        if others := len(clear[target]) - 1:
            more = "1 more measure is" if others == 1 else f"{others} more measures are"
            said += f", and {more} clearly associated with it"
    rest = [
        _beside(outcome, names, best.name) for outcome, names in clear.items() if outcome != target
    ]
    return "; ".join([said, *rest]) + "."


def _beside(outcome: str, clear: Sequence[str], best: str) -> str:
    """What another outcome says, after a semicolon."""
    word = f"the {in_words(outcome)}"
    if not clear:
        return f"with {word} nothing is clearly associated"
    first = [name for name in (best, *clear) if name in clear]
    shown = (
        listing(dict.fromkeys(first))
        if len(clear) <= 2
        else f"{first[0]} and {len(clear) - 1} more"
    )
    return f"with {word}: {shown}"


def _why(statistics: StudyStatistics, best: MeasureStatistics, target: str) -> str:
    found, tests = best.judged, statistics.holm[JUDGED].num_tests
    if math.isnan(found.value):
        return ""
    said = f"{best.name} and the {in_words(target)}: Spearman's ρ = {found.cell}"
    if math.isnan(found.p):
        return f"{said}, without an interval. {signs_differ(best)}".rstrip()
    tested = "1 measure" if tests == 1 else f"{tests} measures"
    said += f", {chance(best.holm[JUDGED])} after Holm's correction for {tested}"
    said += f"; its {percent(statistics.confidence)} interval is taken {found.counted}"
    if best.is_finding:
        return " ".join(filter(None, [f"{said}.", _given(best), signs_differ(best)]))
    zero = "includes 0"
    if not found.low <= 0 <= found.high:
        zero = f"leaves out 0, but is one of {tests} that were tried"
    return f"The closest are {said}; it {zero}. {signs_differ(best)}".rstrip()


def _given(row: MeasureStatistics) -> str:
    """What is left of a finding with the confounders held fixed."""
    given = row.given
    if given is None:
        return "No confounder was measured to check it against."
    fixed = ", ".join(row.partial_spearman.given) if row.partial_spearman else ""
    return f"With {fixed or 'the confounders'} held fixed: ρ = {given.cell or 'undefined'}."


def _judged(population: Population, statistics: StudyStatistics) -> str:
    number = statistics.n - statistics.without_target
    settings = f" of {statistics.settings} settings" if statistics.settings else ""
    said = f"Judged over {number} networks{settings}."
    return f"{said} {population.not_judged}".rstrip()


def strength(found: Association) -> float:
    """A key for sorting: the size of ρ; what has none comes last."""
    return -1.0 if math.isnan(found.judged.value) else abs(found.judged.value)
