"""Reports of several networks on the same data, and what can be read off them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from ...ground.errors import SpiritlevelError, require
from ...ground.plain_text import visible
from ...measures import registered_cards
from ...measures.confounders import GINI, MEASURED_ALONG
from ...records.content import Column, Part, Table, Text
from ...records.measurements import Measurement, Report
from ...records.notebooks import Shown, as_text
from ...records.reading import Misread, Saved, to_plain
from . import sentences
from .ranking import (
    Pair,
    PairFindings,
    Place,
    Ranking,
    by_trust,
    flatness_sign,
    larger,
    places,
    round_off,
)
from .scale import NOT_AUDITED, Scale, claimed
from .sentences import DIFFERENT, apart


@dataclasses.dataclass(eq=False, repr=False)
class Comparison(Shown, Saved):
    """Reports of several networks on the same data, and what can be read off them.

    Raises SpiritlevelError for fewer than two networks, or reports that do not go together.
    """

    CALLED: ClassVar = "the comparison"
    EXTENDED: ClassVar = True  # by all that follows from the reports
    FORMAT: ClassVar = "spiritlevel-comparison-1"

    reports: Mapping[str, Report]
    # A network at the confidence of another one, less confident: `matched_pairs[sure][unsure]`.
    matched_pairs: Mapping[str, Mapping[str, Report]] | None = dataclasses.field(
        default=None, kw_only=True
    )
    unmatched: str = dataclasses.field(default="", kw_only=True)  # why there are no such pairs
    # What symmetries of these networks do to each measure; by the cards where it is missing.
    scales: Mapping[str, Scale] = dataclasses.field(default_factory=dict, kw_only=True)
    audited: str = dataclasses.field(default=NOT_AUDITED, kw_only=True)  # how that was found out

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
        known = {card.name: card.direction for card in registered_cards()}
        self.directions = {name: known[name] for name in self.measures if name in known}
        flatness = [name for name in self.measures if self.directions.get(name)]
        self.scales = {name: self.scales.get(name) or claimed(name) for name in flatness}

    # -- reading -----------------------------------------------------------------------------

    def value(self, measure: str, name: str) -> Measurement:
        """The measurement of one network."""
        return self.reports[name][measure]

    @property
    def ranked(self) -> list[str]:
        """The measures that may rank these networks, the one that decides first.

        They measure flatness, and no symmetry of these networks changes them.
        """
        return by_trust(self.scales)

    @property
    def losses(self) -> dict[str, float]:
        """By network, where they are known of all."""
        found = {name: r.settings.get("subject", {}) for name, r in self.reports.items()}
        if any(each.get("mean_loss") is None for each in found.values()):
            return {}
        return {name: float(each["mean_loss"]) for name, each in found.items()}

    @property
    def untrained(self) -> dict[str, float]:
        """The networks that are hardly trained, with the loss of equal probabilities.

        Their loss is closer to that than to 0.
        """
        chances = {}
        for name, loss in self.losses.items():
            settings = self.reports[name].settings
            chance = math.log(max(settings.get("num_outputs", 1), 1))
            if settings.get("loss") == "cross_entropy" and chance and loss > chance / 2:
                chances[name] = chance
        return chances

    @property
    def names(self) -> list[str]:
        """The networks that are ranked: hardly trained ones are left out where others are further.

        All of them, if fewer than two would remain.
        """
        enough = DIFFERENT * min(self.losses.values(), default=math.inf)
        left_out = {name for name in self.untrained if self.losses[name] > enough}
        kept = [name for name in self.reports if name not in left_out]
        return kept if len(kept) > 1 else list(self.reports)

    def places(self, measure: str, *, matched: bool = False) -> dict[str, Place]:
        """Rank of every network, flat ones first, with the ranks that the errors leave open.

        Empty for a measure that may not rank them. `matched` compares each two of them at equal
        confidence.
        """
        if measure not in self.ranked:
            return {}

        def ahead(one: str, other: str) -> bool:
            a, b = self.side_by_side(measure, one, other, matched=matched)
            return self._sign(measure) * (a.value - b.value) > round_off(a, b)

        def beyond(one: str, other: str) -> bool:
            return self.certain(measure, one, other, matched=matched)

        return places(self.names, ahead, beyond)

    def certain(self, measure: str, flatter: str, sharper: str, *, matched: bool = False) -> bool:
        """Whether the first network is flatter beyond the errors of both.

        Where symmetries change a measure a little, it must differ by more than they change it.
        """
        one, other = self.side_by_side(measure, flatter, sharper, matched=matched)
        high, low = (one, other) if self._sign(measure) > 0 else (other, one)
        return measure in self.ranked and larger(high, low, slack=self.scales[measure].slack)

    def side_by_side(
        self, measure: str, one: str, other: str, *, matched: bool
    ) -> tuple[Measurement, Measurement]:
        """Two networks' values as they are, or at the confidence of the less confident one."""
        pairs = self.matched_pairs or {}

        def of(name: str, beside: str) -> Measurement:
            reports = pairs.get(name, {}) if matched else {}
            return reports.get(beside, self.reports[name])[measure]

        return of(one, other), of(other, one)

    def _sign(self, measure: str) -> int:
        return flatness_sign(self.directions.get(measure))  # none for what has no card here

    def answer(self) -> Ranking | None:
        """The networks from flat to sharp; None if nothing that was measured may rank them.

        By a measure that no symmetry of these networks changes, each two of them at equal
        confidence where that was measured.
        """
        if not self.ranked:
            return None
        first, *others = self.ranked
        matched = self.matched_pairs is not None
        ranks = self.places(first, matched=matched)
        pairs = list(itertools.combinations(ranks, 2))

        def is_open(measure: str, a: str, b: str) -> bool:
            orders = ((a, b), (b, a))
            return not any(self.certain(measure, *order, matched=matched) for order in orders)

        opposing = {
            measure: [
                (b, a)
                for a, b in (*pairs, *(pair[::-1] for pair in pairs))
                if self.certain(first, a, b, matched=matched)
                and self.certain(measure, b, a, matched=matched)
            ]
            for measure in others
        }
        return Ranking(
            measure=first,
            scale=self.scales[first],
            matched=matched,
            places=ranks,
            before=self.places(first) if matched else None,
            open={m: [pair for pair in pairs if is_open(m, *pair)] for m in self.ranked},
            opposing={measure: found for measure, found in opposing.items() if found},
        )

    def pairs(self) -> list[PairFindings]:
        """What is found of every two networks, the flatter one first; empty without an answer."""
        answer = self.answer()
        if answer is None:
            return []
        return [self._found(a, b) for a, b in itertools.combinations(answer.names, 2)]

    def _found(self, a: str, b: str) -> PairFindings:
        matched = self.matched_pairs is not None
        flatter = tuple(m for m in self.ranked if self.certain(m, a, b, matched=matched))
        sharper = tuple(m for m in self.ranked if self.certain(m, b, a, matched=matched))
        both = {m: self.side_by_side(m, a, b, matched=matched) for m in self.ranked}
        before = [
            tuple(m for m in self.ranked if self.certain(m, *two)) for two in ((a, b), (b, a))
        ]
        return PairFindings(
            a,
            b,
            values={measure: (one.value, other.value) for measure, (one, other) in both.items()},
            flatter_by=flatter,
            sharper_by=sharper,
            open=tuple(m for m in self.ranked if m not in flatter + sharper),
            before=(before[0], before[1]),
            confounders=tuple(self._confounders(a, b, leave_out=GINI if matched else "")),
        )

    def _confounders(self, a: str, b: str, *, leave_out: str) -> list[Pair]:
        """The confounders in which the two networks differ beyond the errors."""
        pairs = []
        for name in MEASURED_ALONG:
            if name in self.measures and name != leave_out:
                one, other = self.value(name, a), self.value(name, b)
                if larger(one, other) or larger(other, one):
                    pairs.append(Pair(name, one.value, other.value))
        return pairs

    # -- writing -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return visible(f"Comparison({', '.join(self.reports)}: {self.summary()[0]})")

    def describe(self) -> list[Part]:
        """The answer, the ranking, and what is found of every two networks."""
        return [Text(self.summary()), self.ranking_table(), Text(self.findings(), bullets=True)]

    def describe_details(self) -> list[Part]:
        """All measures of all networks, and all that was found of every two of them."""
        return [*self.rank_tables(), Text(self.detailed_findings(), bullets=True)]

    def details(self) -> str:
        """All measures of all networks, and all that was found of every two of them."""
        return as_text(self.describe_details())

    def summary(self) -> list[str]:
        """The answer, how far each network is trained, and how far to trust it, in sentences."""
        answer = self.answer()
        if not self.scales:
            lines = [sentences.NO_RANKS]
        elif answer is None:
            lines = [sentences.cannot_rank(self.scales)]
        else:
            lines = sentences.answer(answer, self.pairs()[0])
        if self.unmatched:
            lines.append(f"Not compared at equal confidence: {self.unmatched}")
        lines += sentences.stages(self.losses, self.untrained, self.names)
        if answer is not None:
            lines.append(sentences.trust(answer, self.scales, self.audited))
        return lines

    def ranking_table(self) -> Table:
        """A row for each network: rank and value, and how well the network does."""
        answer = self.answer()
        ranks = {} if answer is None else answer.places
        names = [*ranks, *(name for name in self.reports if name not in ranks)]
        columns: dict[str, list[str]] = {"network": names}
        if answer is not None:
            columns["rank"] = [str(ranks[name]) if name in ranks else "–" for name in names]
            columns[answer.measure] = apart(
                [self.value(answer.measure, name).value for name in names], fewest=4
            )
            if self.matched_pairs is not None and len(ranks) == len(names) == 2:
                values = self.pairs()[0].values[answer.measure]
                columns["equally confident"] = apart(values, fewest=4)
        if GINI in self.measures:
            columns["Gini impurity"] = apart([self.value(GINI, name).value for name in names])
        if self.losses:
            columns["loss"] = apart([self.losses[name] for name in names], fewest=4)
        rates = [self.reports[name].settings.get("subject", {}).get("accuracy") for name in names]
        if None not in rates:
            columns["accuracy"] = apart(list(map(float, rates)), fewest=4)
        headings = [
            Column(title, kind="number" if i else "name") for i, title in enumerate(columns)
        ]
        return Table(headings, list(zip(*columns.values(), strict=True)))

    def rank_tables(self) -> list[Table]:
        """Values and ranks of all networks, as they are, and ranks at equal confidence."""
        networks = [Column(name, kind="name", group="networks") for name in self.reports]
        audit = Column("audit", kind="word")
        kinds = {name: self.scales[name].kind for name in self.scales}
        rows = [
            [measure, *self._cells(measure), kinds.get(measure, "")] for measure in self.measures
        ]
        how = "as the networks are"
        columns = [Column(how), *networks, audit]
        tables = [Table(columns, rows, "rank-table", f"Values and ranks, {how}")]
        if self.matched_pairs is not None and self.ranked:
            how = "at equal confidence"
            matched = [
                [measure, *(str(ranks.get(name, "–")) for name in self.reports)]
                for measure in self.ranked
                for ranks in [self.places(measure, matched=True)]
            ]
            columns = [Column(how), *networks]
            tables.append(Table(columns, matched, "matched-rank-table", f"Ranks, {how}"))
        return tables

    def _cells(self, measure: str) -> list[str]:
        """Values with their ranks, where they have some; different ones look different."""
        shown = apart([report[measure].value for report in self.reports.values()], fewest=4)
        ranks = self.places(measure)
        return [
            f"{value} #{ranks[name]}" if name in ranks else value
            for name, value in zip(self.reports, shown, strict=True)
        ]

    def findings(self) -> list[str]:
        """What is found of every two networks, a sentence or two each."""
        return [sentences.of_pair(pair, self.ranked[0]) for pair in self.pairs()]

    def reading(self) -> list[str]:
        """How the ranks are read, and why some measures have none."""
        reports = self.reports.values()
        unknown = [m for m in self.ranked if any(r[m].data_stderr is None for r in reports)]
        return sentences.reading(self.measures, self.directions, self.scales, unknown)

    def detailed_findings(self) -> list[str]:
        """How the ranks are read, then a paragraph with all that was found of every two."""
        found = ["\n  ".join(sentences.details_of_pair(pair)) for pair in self.pairs()]
        return self.reading() + found

    def to_frame(self) -> Any:
        """A pandas DataFrame: a row per network and measure, with ranks as the answer has them.

        `scale` says what symmetries do to a measure of flatness. The ranks of one that may not
        rank the networks are missing.
        """
        pandas = require("pandas", what="Comparison.to_frame", extra="frames")
        frames = []
        for network, report in self.reports.items():
            frame = report.to_frame()
            frame = frame[(frame["layer"] == "") & frame["measure"].isin(self.measures)]
            frames.append(frame.drop(columns="layer").assign(network=network))
        frame = pandas.concat(frames, ignore_index=True)
        matched = self.matched_pairs is not None
        ranks = {measure: self.places(measure, matched=matched) for measure in self.measures}
        kinds = {name: scale.kind for name, scale in self.scales.items()}
        frame["scale"] = frame["measure"].map(kinds)
        for field in ("rank", "best", "worst"):
            frame[field] = [
                getattr(ranks[measure].get(network), field, None)
                for measure, network in zip(frame["measure"], frame["network"], strict=True)
            ]
        return frame[["network", *(name for name in frame if name != "network")]]

    def to_dict(self) -> dict[str, Any]:
        """The comparison in plain types, ready for JSON, with what follows from its reports."""
        following = {
            "ranks": {measure: self.places(measure) for measure in self.ranked},
            "directions": {name: self.directions.get(name) for name in self.measures},
            "answer": self.answer(),
            "pairs": self.pairs(),
        }
        return super().to_dict() | {key: to_plain(value) for key, value in following.items()}

    def check_parts(self) -> None:
        """Refuse reports at equal confidence that are of other networks or measures."""
        for name, beside in (self.matched_pairs or {}).items():
            if not {name, *beside} <= set(self.reports):
                raise Misread("the comparison's matched_pairs and reports are of other networks")
            if any(measure not in report for report in beside.values() for measure in self.ranked):
                raise Misread("the comparison's matched_pairs have not all measures that rank")
