"""Who is flatter than whom, beyond errors, and the places that follow from all pairs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from ...records.measurements import Measurement, Status
from .scale import ADMITTED, Scale

PREFERRED = ("relative.kappa", "neuron.rho_sum", "head.kappa")
Pairs = Sequence[tuple[str, str]]
Relation = Callable[[str, str], bool]


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


def places(names: Sequence[str], ahead: Relation, beyond: Relation) -> dict[str, Place]:
    """The place of every network, flat ones first, from the outcomes of all pairs.

    `ahead` compares the values alone, and `beyond` their errors as well. Since every pair is
    compared at a confidence of its own, outcomes may go round in a circle. Such networks share a
    place, so that a further network never turns the order of two others round.

    >>> places("ab", lambda one, other: (one, other) == ("b", "a"), lambda one, other: False)
    {'b': Place(rank=1, best=1, worst=2), 'a': Place(rank=2, best=1, worst=2)}
    """
    before = {pair for pair in itertools.permutations(names, 2) if ahead(*pair)}
    for middle, one, other in itertools.product(names, repeat=3):
        if (one, middle) in before and (middle, other) in before:
            before.add((one, other))
    found = {}
    for name in names:
        others = [each for each in names if not {(each, name), (name, each)} <= before]
        rank = 1 + sum((each, name) in before for each in others)
        best = 1 + sum(beyond(each, name) for each in others)
        worst = len(names) - sum(beyond(name, each) for each in others)
        found[name] = Place(rank, best, worst)
    return dict(sorted(found.items(), key=lambda item: item[1].rank))


def flatness_sign(direction: str | None) -> int:
    """1 where larger values are flatter, −1 where smaller ones are, 0 where neither."""
    return {"larger is flatter": 1, "smaller is flatter": -1, None: 0}[direction]


def larger(one: Measurement, other: Measurement, *, slack: float = 1.0) -> bool:
    """Whether the first value is the larger one beyond the errors of both, and by this factor."""
    sizes = sorted((abs(one.value), abs(other.value)))
    by_much = one.value * other.value <= 0 or sizes[1] >= slack * sizes[0]
    return one.value - other.value > _margin(one, other) and by_much


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


def by_trust(scales: Mapping[str, Scale]) -> list[str]:
    """The measures that may rank networks: the surest first, of them those changed least."""
    known = [*PREFERRED, *scales]
    admitted = [name for name, scale in scales.items() if scale.admits]
    return sorted(
        admitted, key=lambda n: (ADMITTED.index(scales[n].kind), scales[n].slack, known.index(n))
    )


@dataclasses.dataclass(frozen=True)
class Pair:
    """A confounder in two networks that differ in it beyond the errors."""

    confounder: str
    in_first: float
    in_second: float


@dataclasses.dataclass(frozen=True)
class PairFindings:
    """Everything found of two networks; `first` is the flatter one by the measure that decides.

    All but `before` is at equal confidence where that was measured.
    """

    first: str
    second: str
    values: Mapping[str, tuple[float, float]]  # of both, by each measure that may rank them
    flatter_by: tuple[str, ...]  # measures by which the first is flatter, beyond errors
    sharper_by: tuple[str, ...]
    open: tuple[str, ...]
    before: tuple[tuple[str, ...], tuple[str, ...]]  # as they are: first flatter by, and sharper
    confounders: tuple[Pair, ...]  # in which they differ beyond errors; no cause is claimed

    @property
    def by_confidence(self) -> list[str]:
        """Measures whose order as they are is lost or reversed at equal confidence."""
        now = (self.flatter_by, self.sharper_by)
        return [
            m for then, kept in zip(self.before, now, strict=True) for m in then if m not in kept
        ]


@dataclasses.dataclass(frozen=True, repr=False)
class Ranking:
    """Where the networks stand, and who contradicts."""

    measure: str  # that decides
    scale: Scale  # what symmetries of these networks do to it
    matched: bool  # whether at equal confidence
    places: Mapping[str, Place]  # from flat to sharp
    before: Mapping[str, Place] | None  # as the networks are, where `places` is at equal confidence
    open: Mapping[str, Pairs]  # pairs that a measure cannot separate, for this and each other one
    opposing: Mapping[str, Pairs]  # pairs (flatter, sharper) that other measures order otherwise

    def __repr__(self) -> str:
        return f"Ranking({listed(self.places)} by {self.measure})"

    @property
    def names(self) -> list[str]:
        """The networks from flat to sharp."""
        return list(self.places)

    @property
    def tied(self) -> Pairs:
        """The pairs that the deciding measure cannot separate."""
        return self.open[self.measure]

    @property
    def circles(self) -> list[list[str]]:
        """Networks of one rank although the deciding measure separates some of them."""
        ranks = sorted({place.rank for place in self.places.values()})
        alike = [[n for n, place in self.places.items() if place.rank == rank] for rank in ranks]
        return [
            each
            for each in alike
            if not {*itertools.combinations(each, 2)} <= {*map(tuple, self.tied)}
        ]

    @property
    def agreeing(self) -> tuple[str, ...]:
        """Other measures that order no pair the other way beyond errors."""
        return tuple(m for m in self.open if m != self.measure and m not in self.opposing)


def listed(places: Mapping[str, Place]) -> str:
    """Networks with their ranks.

    >>> listed({"b": Place(1, 1, 1), "a": Place(2, 2, 3)})
    "1 'b', 2 (2–3) 'a'"
    """
    return ", ".join(f"{place} {name!r}" for name, place in places.items())
