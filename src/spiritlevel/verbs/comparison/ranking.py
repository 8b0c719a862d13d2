"""What a comparison says: which network is flatter, beyond errors, and what explains that.

The measure that decides is one that rescaling layers does not change, taken at equal confidence
where that could be measured: scale and confidence are no reasons to call a network flat.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from ...records.measurements import Measurement, Report, Status
from .. import measuring as api

PREFERRED = ("relative.kappa", "neuron.rho_sum", "head.kappa")
Orders = Sequence[tuple[str, str]]  # (flatter, sharper) beyond errors


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a network stands under a measure: 1 is the flattest."""

    rank: int
    best: int  # the rank it may have if every error falls in its favour
    worst: int

    def __str__(self) -> str:
        return (
            str(self.rank) if self.best == self.worst else f"{self.rank} ({self.best}–{self.worst})"
        )


def directions() -> dict[str, str | None]:
    """By measure, which values are flatter, by its card; None if it does not measure flatness."""
    return {card.name: card.direction for card in api.cards()}


def counterparts() -> dict[str, str]:
    """By measure, the one that is like it but does not change with the scale of the weights."""
    return {card.name: card.counterpart for card in api.cards() if card.counterpart}


def flatness_sign(direction: str | None) -> int:
    """1 where larger values are flatter, −1 where smaller ones are, 0 where neither."""
    return {"larger is flatter": 1, "smaller is flatter": -1, None: 0}[direction]


def larger(one: Measurement, other: Measurement) -> bool:
    """Whether the first value is the larger one beyond the errors of both."""
    return one.value - other.value > _margin(one, other)


def flatter_by(
    sign: int, reports: Mapping[str, Report], measure: str, pair: tuple[str, str]
) -> bool:
    """Whether the first network of the pair is the flatter one beyond the errors of both."""
    one, other = (reports[name][measure] for name in pair)
    return sign != 0 and (larger(one, other) if sign > 0 else larger(other, one))


def places(sign: int, reports: Mapping[str, Report], measure: str) -> dict[str, Place]:
    """Rank of every network, with the ranks that the errors leave open; empty without a sign."""
    ranks = {}
    for name in reports if sign else ():
        others = [other for other in reports if other != name]
        below = sum(flatter_by(sign, reports, measure, (other, name)) for other in others)
        above = sum(flatter_by(sign, reports, measure, (name, other)) for other in others)
        here, all_values = reports[name][measure], [each[measure] for each in reports.values()]
        ahead = (sign * (m.value - here.value) > round_off(here, m) for m in all_values)
        ranks[name] = Place(1 + sum(ahead), 1 + below, len(reports) - above)
    return ranks


def round_off(one: Measurement, other: Measurement) -> float:
    """How much two equal values may differ because of rounding."""
    return 1e-6 * max(abs(one.value), abs(other.value))


def standard_error(m: Measurement) -> float:
    """Of the probes and the samples together; infinite where too few probes give none.

    A sampling error that the probes hide is about theirs or less, and counts as theirs. Where it is
    not known of a value without probes, the value is compared on these samples alone.
    """
    if m.stderr is None:
        unknown = m.status is Status.NOT_CONVERGED and m.residual is None
        return math.inf if unknown else m.data_stderr or 0.0
    return math.hypot(m.stderr, m.stderr if m.data_stderr is None else m.data_stderr)


def _margin(one: Measurement, other: Measurement) -> float:
    """How much two values must differ: errors of probes and data, and the residuals.

    Both networks see the same samples, so their data errors are mostly alike. Counting them as
    independent is cautious: fewer differences count as certain.
    """
    confidence = float(one.settings.get("confidence", 0.95))
    factor = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    wide = factor * math.hypot(standard_error(one), standard_error(other))
    return wide + (one.residual or 0.0) + (other.residual or 0.0) + round_off(one, other)


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """Two measures that order two networks in opposite ways, both beyond their errors."""

    flatter: str  # by the first measure
    sharper: str
    first: str
    second: str


@dataclasses.dataclass(frozen=True)
class Explained:
    """A difference between two networks that a confounder accounts for."""

    measure: str
    flatter: str
    sharper: str
    by: str  # "scale" or "confidence"; "scale" if both do; the text then names both
    text: str


@dataclasses.dataclass(frozen=True)
class Pair:
    """A confounder in two networks that differ in it beyond the errors."""

    confounder: str
    in_flatter: float
    in_sharper: float

    @property
    def direction(self) -> str:
        """Whether the flatter network has the larger or the smaller value."""
        return "larger" if self.in_flatter > self.in_sharper else "smaller"


@dataclasses.dataclass(frozen=True)
class AlsoDiffering:
    """A difference beyond errors, with everything else that differs and may be its cause."""

    measure: str
    flatter: str
    sharper: str
    confounders: tuple[Pair, ...]
    left: float | None  # share of the difference once both are equally confident; None: not known


@dataclasses.dataclass(frozen=True)
class PairFindings:
    """Everything found of two networks; `first` is the flatter one by the measure that decides.

    The first three are at equal confidence where that was measured, and take only measures that
    rescaling does not change, if there are any.
    """

    first: str
    second: str
    flatter_by: tuple[str, ...]  # measures by which the first is flatter, beyond errors
    sharper_by: tuple[str, ...]
    open: tuple[str, ...]
    before: tuple[
        tuple[str, ...], ...
    ]  # as they are, by all measures: first flatter, first sharper
    explained: tuple[Explained, ...]
    remaining: tuple[AlsoDiffering, ...]  # differences of which a share is left
    confounders: tuple[Pair, ...]  # in_flatter is that of the first network


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Where the networks stand, and who contradicts."""

    measure: str  # that decides
    scale_free: bool  # whether rescaling layers leaves it as it is
    matched: bool  # whether at equal confidence
    places: Mapping[str, Place]  # from flat to sharp
    before: Mapping[str, Place] | None  # as the networks are, where `places` is at equal confidence
    agreeing: tuple[str, ...]  # other measures that order no pair the other way beyond errors
    opposing: Mapping[str, Orders]  # other measures, and the pairs they order the other way

    @property
    def names(self) -> list[str]:
        """The networks from flat to sharp."""
        return list(self.places)

    def sentences(self) -> list[str]:
        """The ranking, what equal confidence did to it, and what the other measures say."""
        how = "at equal confidence" if self.matched else "as the networks are"
        lines = [f"From flat to sharp by {self.measure}, {how}: {_listed(self.places)}."]
        if not self.scale_free:
            lines.append(
                f"{self.measure} changes when layers are rescaled, so this order may be one of "
                "scale. Measure relative.kappa too."
            )
        if self.before is not None:
            lines.append(self._without_matching(self.before))
        total = len(self.places) * (len(self.places) - 1) // 2
        if self.agreeing:
            names = _named(self.agreeing, "and")
            lines.append(f"By {names}, no two networks are the other way round beyond errors.")
        if self.opposing:
            disputed = {frozenset(pair) for pairs in self.opposing.values() for pair in pairs}
            are = "is" if total == 1 else "are"
            lines.append(
                f"By {_named(self.opposing, 'or')}, {len(disputed)} of {total} "
                f"{'pair' if total == 1 else 'pairs'} {are} the other way round beyond errors."
            )
        return lines

    def _without_matching(self, before: Mapping[str, Place]) -> str:
        if _listed(before) == _listed(self.places):
            return "As the networks are, the order is the same."
        if list(before) == list(self.places):
            return f"As the networks are, the errors leave other ranks open: {_listed(before)}."
        return f"As the networks are: {_listed(before)}. Confidence alone makes that difference."


def scale_free(ranked: Sequence[str]) -> list[str]:
    """The measures of flatness that rescaling layers does not change, the preferred ones first."""
    cards = {card.name: card for card in api.cards()}
    free = [name for name in ranked if "layer_rescale" in cards[name].invariant]
    return sorted(free, key=lambda n: PREFERRED.index(n) if n in PREFERRED else len(PREFERRED))


def _listed(places: Mapping[str, Place]) -> str:
    """Networks with their ranks.

    >>> _listed({"b": Place(1, 1, 1), "a": Place(2, 2, 3)})
    "1 'b', 2 (2–3) 'a'"
    """
    return ", ".join(f"{place} {name!r}" for name, place in places.items())


def _named(measures: Iterable[str], joined: str) -> str:
    """Measures in a sentence.

    >>> _named(["a", "b", "c"], "or")
    'a, b or c'
    """
    *most, last = measures
    return f"{', '.join(most)} {joined} {last}" if most else last
