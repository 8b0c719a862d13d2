"""Reports of several networks on the same data, and what can be read off them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ...ground.errors import SpiritlevelError
from ...ground.plain_text import visible
from ...measures.confounders import GINI, MEASURED_ALONG
from ...records.content import Column, Part, Table, Text
from ...records.measurements import Measurement, Report
from ...records.notebooks import Shown, as_text
from ...records.reading import Misread, Saved, to_plain
from .. import measuring as api
from . import sentences
from .ranking import (
    AlsoDiffering,
    Disagreement,
    Explained,
    Pair,
    PairFindings,
    Place,
    Ranking,
    counterparts,
    directions,
    flatness_sign,
    flatter_by,
    larger,
    places,
    scale_free,
)
from .sentences import apart


@dataclasses.dataclass(eq=False, repr=False)
class Comparison(Shown, Saved):
    """Reports of several networks on the same data, and what can be read off them.

    Raises SpiritlevelError for fewer than two networks, or reports that do not go together.
    """

    CALLED: ClassVar = "the comparison"
    EXTENDED: ClassVar = True  # by all that follows from the reports
    FORMAT: ClassVar = "spiritlevel-comparison-1"

    reports: Mapping[str, Report]
    # the same networks at equal confidence, or why there are none
    matched: Mapping[str, Report] | None = dataclasses.field(default=None, kw_only=True)
    unmatched: str = dataclasses.field(default="", kw_only=True)

    def __post_init__(self) -> None:
        reports = self.reports
        if len(reports) < 2:
            raise SpiritlevelError(
                f"A comparison needs at least two networks. Got {len(reports)}. Pass "
                "{name: model, …} with the checkpoints to set side by side."
            )
        first = next(iter(self.reports.values()))
        self.measures = [name for name in first if all(name in r for r in self.reports.values())]
        counts = {int(r.settings["num_samples"]) for r in self.reports.values()}
        if len(counts) > 1 or not self.measures:
            raise SpiritlevelError(
                "Networks are compared by the same measures on the same data. Got reports on "
                f"{sorted(counts)} samples with {len(self.measures)} measures in common. Measure "
                "all of them with one call of compare."
            )
        known_directions = directions()  # a file may contain measures of another version
        self.directions = {
            name: known_directions[name] for name in self.measures if name in known_directions
        }

    # -- reading -----------------------------------------------------------------------------

    def value(self, measure: str, name: str) -> Measurement:
        """The measurement of one network."""
        return self.reports[name][measure]

    @property
    def ranked(self) -> list[str]:
        """The measures of flatness; confounders and other facts about a network rank nothing."""
        return [name for name in self.measures if self._sign(name)]

    @property
    def of_these_samples(self) -> list[str]:
        """The ranked measures whose sampling error is not known for all networks."""
        reports = self.reports.values()
        return [
            name
            for name in self.ranked
            if any(report[name].data_stderr is None for report in reports)
        ]

    def places(self, measure: str, *, matched: bool = False) -> dict[str, Place]:
        """Rank of every network, with the ranks that the errors leave open.

        Empty for a measure that is not one of flatness. `matched` ranks them at equal confidence.
        """
        return places(self._sign(measure), self._reports(matched), measure)

    def answer(self) -> Ranking | None:
        """The networks from flat to sharp; None if nothing that was measured is flatness.

        By a measure that rescaling does not change, at equal confidence where that was measured.
        """
        deciding = scale_free(self.ranked) or self.ranked
        if not deciding:
            return None
        first, *others = deciding if scale_free(self.ranked) else deciding[:1]
        matched = self.matched is not None
        ranks, before = self.places(first, matched=matched), self.places(first)
        opposing = {m: self._opposing(first, m) for m in others}
        return Ranking(
            measure=first,
            scale_free=first in scale_free(self.ranked),
            matched=matched,
            places=_flat_first(ranks),
            before=_flat_first(before) if matched else None,
            agreeing=tuple(m for m, pairs in opposing.items() if not pairs),
            opposing={m: pairs for m, pairs in opposing.items() if pairs},
        )

    def _opposing(self, first: str, other: str) -> list[tuple[str, str]]:
        """The pairs that the other measure orders the other way round, both beyond errors."""
        return [
            (a, b)
            for a, b in itertools.permutations(self.reports, 2)
            if self._holds(other, a, b) and self._holds(first, b, a)
        ]

    def _holds(self, measure: str, flatter: str, sharper: str) -> bool:
        """Whether the first is flatter beyond errors, at equal confidence if that was measured."""
        reports = self._reports(self.matched is not None)
        return flatter_by(self._sign(measure), reports, measure, (flatter, sharper))

    def _reports(self, matched: bool) -> Mapping[str, Report]:
        return self.matched if matched and self.matched is not None else self.reports

    def pairs(self) -> list[PairFindings]:
        """What is found of every two networks, the flatter one first."""
        answer = self.answer()
        order = list(self.reports) if answer is None else answer.names
        explained, differing = self.explained(), self.also_differing()
        deciding = scale_free(self.ranked) or self.ranked
        found = []
        for a, b in itertools.combinations(order, 2):
            confounders = self._confounders(a, b)
            if self.matched is not None:
                confounders.pop(GINI, None)
            found.append(
                PairFindings(
                    a,
                    b,
                    flatter_by=tuple(m for m in deciding if self._holds(m, a, b)),
                    sharper_by=tuple(m for m in deciding if self._holds(m, b, a)),
                    open=tuple(
                        m for m in deciding if not self._holds(m, a, b) and not self._holds(m, b, a)
                    ),
                    before=tuple(
                        tuple(m for m in self.ranked if self.certain(m, *pair))
                        for pair in ((a, b), (b, a))
                    ),
                    explained=tuple(e for e in explained if {e.flatter, e.sharper} == {a, b}),
                    remaining=tuple(
                        d
                        for d in differing
                        if {d.flatter, d.sharper} == {a, b} and d.left is not None
                    ),
                    confounders=tuple(confounders.values()),
                )
            )
        return found

    def certain(self, measure: str, flatter: str, sharper: str) -> bool:
        """Whether the first network is flatter beyond the errors of both."""
        return flatter_by(self._sign(measure), self.reports, measure, (flatter, sharper))

    def disagreements(self) -> list[Disagreement]:
        """Pairs of measures with opposite and certain orders of a pair of networks."""
        disagreements = []
        for a, b in itertools.combinations(sorted(self.reports), 2):
            one = [m for m in self.ranked if self.certain(m, a, b)]
            other = [m for m in self.ranked if self.certain(m, b, a)]
            disagreements += [Disagreement(a, b, m, n) for m in one for n in other]
        return disagreements

    def explained(self) -> list[Explained]:
        """Differences that scale or confidence explains, one entry per measure and pair."""
        explanations = []
        for measure, flatter, sharper in self._differences():
            reasons = {
                "scale": self._by_scale(measure, flatter, sharper),
                "confidence": self._by_confidence(measure, flatter, sharper),
            }
            holding = {by: text for by, text in reasons.items() if text}
            if holding:
                by, text = next(iter(holding)), "; ".join(holding.values())
                explanations.append(Explained(measure, flatter, sharper, by, text))
        return explanations

    def also_differing(self) -> list[AlsoDiffering]:
        """Every difference beyond errors, with the confounders that differ beyond theirs.

        No cause is claimed. Where the order also holds at equal confidence, confidence is left out,
        and `left` says how much of the difference remains.
        """
        differing = []
        for measure, flatter, sharper in self._differences():
            pairs = self._confounders(flatter, sharper)
            left = None
            if GINI in pairs and self.matched and self._stands(measure, flatter, sharper):
                del pairs[GINI]
                before, after = (
                    reports[sharper][measure].value - reports[flatter][measure].value
                    for reports in (self.reports, self.matched)
                )
                left = after / before
            if pairs or left is not None:
                also = tuple(pairs.values())
                differing.append(AlsoDiffering(measure, flatter, sharper, also, left))
        return differing

    def _differences(self) -> Iterator[tuple[str, str, str]]:
        """Measure, flatter and sharper network, wherever that is certain."""
        for measure in self.ranked:
            for flatter, sharper in itertools.permutations(self.reports, 2):
                if self.certain(measure, flatter, sharper):
                    yield measure, flatter, sharper

    def _sign(self, measure: str) -> int:
        return flatness_sign(self.directions.get(measure))  # none for what has no card here

    def _confounders(self, flatter: str, sharper: str) -> dict[str, Pair]:
        """The confounders in which the two networks differ beyond the errors."""
        pairs = {}
        for name in MEASURED_ALONG:
            if name in self.measures:
                one, other = self.value(name, flatter), self.value(name, sharper)
                if larger(one, other) or larger(other, one):
                    pairs[name] = Pair(name, one.value, other.value)
        return pairs

    def _stands(self, measure: str, flatter: str, sharper: str) -> bool:
        """Whether the order was checked at equal confidence, and holds there."""
        pair = (flatter, sharper)
        return self.matched is not None and flatter_by(
            self._sign(measure), self.matched, measure, pair
        )

    def _by_scale(self, measure: str, flatter: str, sharper: str) -> str:
        """What became of the order under the counterpart, if any; empty if it holds."""
        counterpart = counterparts().get(measure)
        if counterpart not in self.measures or self.certain(counterpart, flatter, sharper):
            return ""
        fate = "is reversed" if self.certain(counterpart, sharper, flatter) else "is lost"
        return f"the order {fate} under {counterpart}, which rescaling layers does not change"

    def _by_confidence(self, measure: str, flatter: str, sharper: str) -> str:
        """What became of the order at equal confidence; empty if it holds."""
        if self.matched is None or self._stands(measure, flatter, sharper):
            return ""
        turned = self._stands(measure, sharper, flatter)
        gini = {name: self.value(GINI, name).value for name in (flatter, sharper)}
        return (
            f"the order {'is reversed' if turned else 'is lost'} once both are equally confident "
            f"(Gini impurity {gini[flatter]:.3g} and {gini[sharper]:.3g})"
        )

    def unchecked(self) -> dict[str, str]:
        """Measures that rescaling layers changes but that were not checked for it, and why not."""
        cards = {card.name: card for card in api.cards()}
        reasons = {}
        for measure in self.ranked:
            if "layer_rescale" in cards[measure].invariant:
                continue
            counterpart = cards[measure].counterpart
            if counterpart is None:
                reasons[measure] = "no other measure is like it except for the scale"
            elif counterpart not in self.measures:
                reasons[measure] = f"{counterpart} could not be measured on all of these networks"
        return reasons

    # -- writing -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return visible(f"Comparison({', '.join(self.reports)}: {self.summary()[0]})")

    def describe(self) -> list[Part]:
        """The answer, the ranking, and what is found of every two networks."""
        heading, *rows = self.ranking_rows()
        columns = [Column(heading[0], kind="name"), *map(Column, heading[1:])]
        return [
            Text(self.summary()),
            Table(columns, rows),
            Text(self.findings(), bullets=True),
        ]

    def describe_details(self) -> list[Part]:
        """All measures of all networks, and all that was found of every two of them."""
        return [*self.rank_tables(), Text(self.detailed_findings(), bullets=True)]

    def rank_tables(self) -> list[Table]:
        """Values and ranks of all networks, as they are and at equal confidence if measured."""
        tables = []
        networks = [Column(name, kind="name", group="networks") for name in self.reports]
        for matched in (False, True) if self.matched is not None else (False,):
            how = "at equal confidence" if matched else "as the networks are"
            rows = [
                [measure, *(self.cell(measure, name, matched=matched) for name in self.reports)]
                for measure in self.measures
            ]
            name = "matched-rank-table" if matched else "rank-table"
            tables.append(Table([Column(how), *networks], rows, name, f"Values and ranks, {how}"))
        return tables

    def summary(self) -> list[str]:
        """The answer, in sentences."""
        answer = self.answer()
        lines = [sentences.NO_RANKS] if answer is None else answer.sentences()
        if self.unmatched:
            lines.append(f"Not compared at equal confidence: {self.unmatched}")
        return lines

    def ranking_rows(self) -> list[tuple[str, ...]]:
        """A heading, and a row for each network: value and rank, and how well the network does."""
        answer = self.answer()
        names = list(self.reports) if answer is None else answer.names
        columns: dict[str, list[str]] = {"network": names}
        if answer is not None:
            title = answer.measure if self.matched is None else "as it is"
            columns[title] = [self.cell(answer.measure, name) for name in names]
            if self.matched is not None:
                columns["equally confident"] = [
                    self.cell(answer.measure, name, matched=True) for name in names
                ]
        if GINI in self.measures:
            columns["Gini impurity"] = apart([self.value(GINI, name).value for name in names])
        subjects = [self.reports[name].settings.get("subject", {}) for name in names]
        for key, title in (("mean_loss", "loss"), ("accuracy", "accuracy")):
            if all(subject.get(key) is not None for subject in subjects):
                columns[title] = apart([float(subject[key]) for subject in subjects], fewest=4)
        return [tuple(columns), *zip(*columns.values(), strict=True)]

    def cell(self, measure: str, name: str, *, matched: bool = False) -> str:
        """A value with its rank, where it has one; the values of a row differ in their digits."""
        reports = self._reports(matched)
        shown = apart([report[measure].value for report in reports.values()], fewest=4)
        value, place = shown[list(reports).index(name)], self.places(measure, matched=matched)
        return f"{value} #{place[name]}" if place else value

    def findings(self) -> list[str]:
        """What is found of every two networks, a sentence or two each."""
        lines = [] if not self.ranked else [sentences.of_pair(pair) for pair in self.pairs()]
        return lines + sentences.unchecked(self.unchecked())

    def details(self) -> str:
        """All measures of all networks, and all that was found of every two of them."""
        return as_text(self.describe_details())

    def detailed_findings(self) -> list[str]:
        """How the ranks are read, then a paragraph with all that was found of every two networks.

        What scale or confidence explains is said once, beside what remains of the difference.
        """
        lines = sentences.ranking(
            self.measures, self.ranked, self.directions, self.of_these_samples
        )
        if self.ranked:
            lines += ["\n  ".join(sentences.details_of_pair(pair)) for pair in self.pairs()]
        return lines + sentences.unchecked(self.unchecked())

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain types, ready for JSON, with what follows from its reports."""
        following = {
            "ranks": {measure: self.places(measure) for measure in self.ranked},
            "directions": {name: self.directions.get(name) for name in self.measures},
            "disagreements": self.disagreements(),
            "explained": self.explained(),
            "also_differing": [_with_directions(d) for d in self.also_differing()],
            "unchecked": self.unchecked(),
            "answer": self.answer(),
        }
        return super().to_dict() | {key: to_plain(value) for key, value in following.items()}

    def check_parts(self) -> None:
        """Refuse reports at equal confidence that are of other networks."""
        if self.matched is not None and set(self.matched) != set(self.reports):
            raise Misread("the comparison's matched and reports are of different networks")


def _with_directions(difference: AlsoDiffering) -> dict[str, Any]:
    pairs = [dataclasses.asdict(p) | {"direction": p.direction} for p in difference.confounders]
    return dataclasses.asdict(difference) | {"confounders": pairs}


def _flat_first(ranks: Mapping[str, Place]) -> dict[str, Place]:
    return dict(sorted(ranks.items(), key=lambda item: item[1].rank))
