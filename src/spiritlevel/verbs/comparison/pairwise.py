"""What a comparison says of two networks: disagreements, explanations, and what else differs."""

from __future__ import annotations

import dataclasses


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
