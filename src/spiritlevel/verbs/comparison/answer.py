"""The answer of a comparison: the networks from flat to sharp, by the measure that decides.

It is a measure that rescaling layers does not change, taken at equal confidence where that could be
measured: scale and confidence are no reasons to call a network flat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from .. import measuring as api
from .ranking import Place

PREFERRED = ("relative.kappa", "neuron.rho_sum", "head.kappa")
Orders = Sequence[tuple[str, str]]  # (flatter, sharper) beyond errors


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
