"""Reports of several networks on the same data, and what can be read off them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ... import api
from ...errors import SpiritlevelError
from ...measures.confounders import GINI, MEASURED_ALONG
from ...plain_text import visible
from ...reading import Misread, read_as
from ...records import Measurement, Report, aligned, read_json
from . import sentences
from .pairwise import AlsoDiffering, Disagreement, Explained, Pair
from .ranking import Place, counterparts, directions, flatness_sign, flatter_by, larger, round_off

FORMAT = "spiritlevel-comparison-1"


class Comparison:
    """Reports of several networks on the same data, and what can be read off them."""

    def __init__(
        self,
        reports: Mapping[str, Report],
        *,
        matched: Mapping[str, Report] | None = None,
        unmatched: str = "",
    ) -> None:
        """`matched` are the same networks at equal confidence; `unmatched` says why there are none.

        Raises SpiritlevelError for fewer than two networks, or reports that do not go together.
        """
        if len(reports) < 2:
            raise SpiritlevelError(
                f"A comparison needs at least two networks. Got {len(reports)}. Pass "
                "{name: model, …} with the checkpoints to set side by side."
            )
        self.reports = dict(reports)
        self.matched = None if matched is None else dict(matched)
        self.unmatched = unmatched
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

    def places(self, measure: str) -> dict[str, Place]:
        """Rank of every network, with the ranks that the errors leave open.

        Empty for a measure that is not one of flatness.
        """
        sign, ranks = self._sign(measure), {}
        for name in self.reports if sign else ():
            others = [other for other in self.reports if other != name]
            below = sum(self.certain(measure, other, name) for other in others)
            above = sum(self.certain(measure, name, other) for other in others)
            here = self.value(measure, name)
            ahead = (sign * (m.value - here.value) > round_off(here, m) for m in self._of(measure))
            ranks[name] = Place(1 + sum(ahead), 1 + below, len(self.reports) - above)
        return ranks

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

    def _of(self, measure: str) -> list[Measurement]:
        return [report[measure] for report in self.reports.values()]

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

    def __str__(self) -> str:
        names = list(self.reports)
        rows = [("measure", *names)]
        for measure in self.measures:
            rows.append((measure, *(self.cell(measure, name) for name in names)))
        lines = [aligned(rows), "", *self.findings()]
        return visible("\n".join(lines), keep="\n")

    def cell(self, measure: str, name: str) -> str:
        """A value with its rank, where it has one."""
        value, place = f"{self.value(measure, name).value:.4g}", self.places(measure).get(name)
        return value if place is None else f"{value} #{place}"

    def findings(self) -> list[str]:
        """What the table shows, in sentences."""
        disagreements, differing = self.disagreements(), self.also_differing()
        lines = sentences.ranking(self.measures, self.ranked, self.directions)
        lines += sentences.disagreement(disagreements)
        if not disagreements and self.ranked:
            lines.append(sentences.NO_DISAGREEMENT)
        lines += sentences.explanation(self.explained())
        lines += sentences.other_differences(differing) + sentences.remaining(differing)
        lines += sentences.unchecked(self.unchecked())
        if self.unmatched:
            lines.append(f"Not compared at equal confidence: {self.unmatched}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain types, ready for JSON."""
        return {
            "format": FORMAT,
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
            "matched": None
            if self.matched is None
            else {name: report.to_dict() for name, report in self.matched.items()},
            "unmatched": self.unmatched,
            "ranks": {
                measure: {n: dataclasses.asdict(p) for n, p in self.places(measure).items()}
                for measure in self.ranked
            },
            "directions": {name: self.directions.get(name) for name in self.measures},
            "disagreements": [dataclasses.asdict(d) for d in self.disagreements()],
            "explained": [dataclasses.asdict(e) for e in self.explained()],
            "also_differing": [_plain(d) for d in self.also_differing()],
            "unchecked": self.unchecked(),
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `Comparison.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read what `to_json` wrote."""
        return read_json(text, "Comparison", FORMAT, cls._from_dict)

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        parts = {
            part: read_as(Mapping[str, Any] | None, data[part], f"the comparison's {part}")
            for part in ("reports", "matched")
        }
        reports, matched = (
            None if part is None else {name: Report.from_dict(each) for name, each in part.items()}
            for part in parts.values()
        )
        unmatched = read_as(str, data["unmatched"], "the comparison's unmatched")
        comparison = cls(reports or {}, matched=matched, unmatched=unmatched)
        if matched is not None and set(matched) != set(comparison.reports):
            raise Misread("the comparison's matched and reports are of different networks")
        return comparison


def _plain(difference: AlsoDiffering) -> dict[str, Any]:
    pairs = [dataclasses.asdict(p) | {"direction": p.direction} for p in difference.confounders]
    return dataclasses.asdict(difference) | {"confounders": pairs}
