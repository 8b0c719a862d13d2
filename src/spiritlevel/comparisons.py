"""Several networks side by side: ranks as far as they are certain, and what explains them.

A difference in flatness may be no more than a difference in scale or in confidence. Two checks say
so: the same order must hold under the measure's counterpart that rescaling leaves alone, and it
must survive when all networks are made equally confident by scaling their logits. The counterparts
are measured along; where there is none, the comparison says that scale was not checked.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from . import api
from ._core import Measurement, Report, SpiritlevelError, read_json
from ._tables import aligned
from .confounders import CONFOUNDERS, GINI
from .matching import equally_confident

FORMAT = "spiritlevel-comparison-1"
COUNTERPARTS = {  # what measures nearly the same, but not the scale of the weights
    "curvature.trace": "relative.kappa",
    "curvature.ggn_trace": "relative.kappa",
    "curvature.lambda_max": "scaled.lambda_max",
    "head.trace": "head.kappa",
    "sharpness.worst": "sharpness.adaptive",
    "sharpness.m_worst": "sharpness.adaptive_m_worst",
    "sharpness.average": "sharpness.adaptive_average",
    "pac_bayes.sigma": "pac_bayes.magnitude",
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a network stands under a measure: 1 is the smallest value, the flattest."""

    rank: int
    best: int  # the rank it may have if every error falls in its favour
    worst: int

    def __str__(self) -> str:
        return (
            str(self.rank) if self.best == self.worst else f"{self.rank} ({self.best}–{self.worst})"
        )


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
    by: str  # "scale" or "confidence"; where both do, scale, and the text names both
    text: str


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

    # -- reading -----------------------------------------------------------------------------

    def value(self, measure: str, name: str) -> Measurement:
        """One number."""
        return self.reports[name][measure]

    def places(self, measure: str) -> dict[str, Place]:
        """Rank of every network, with the ranks that the errors leave open."""
        found = {}
        for name in self.reports:
            others = [other for other in self.reports if other != name]
            below = sum(self.certain(measure, other, name) for other in others)
            above = sum(self.certain(measure, name, other) for other in others)
            here = self.value(measure, name)
            smaller = (self.value(measure, other) for other in others)
            rank = 1 + sum(here.value - m.value > _round_off(here, m) for m in smaller)
            found[name] = Place(rank, 1 + below, len(self.reports) - above)
        return found

    def certain(self, measure: str, flatter: str, sharper: str) -> bool:
        """Whether the first network is flatter beyond the errors of both."""
        return _certain(self.reports, measure, flatter, sharper)

    def disagreements(self) -> list[Disagreement]:
        """Pairs of measures with opposite and certain orders of a pair of networks."""
        judged = [m for m in self.measures if m not in CONFOUNDERS]
        found = []
        for a, b in itertools.combinations(sorted(self.reports), 2):
            one = [m for m in judged if self.certain(m, a, b)]
            other = [m for m in judged if self.certain(m, b, a)]
            found += [Disagreement(a, b, m, n) for m in one for n in other]
        return found

    def explained(self) -> list[Explained]:
        """Differences that scale or confidence account for, one entry a measure and pair."""
        found = []
        for measure in self.measures:
            if measure in CONFOUNDERS:
                continue
            for flatter, sharper in itertools.permutations(self.reports, 2):
                if self.certain(measure, flatter, sharper):
                    reasons = {
                        "scale": self._by_scale(measure, flatter, sharper),
                        "confidence": self._by_confidence(measure, flatter, sharper),
                    }
                    holding = {by: text for by, text in reasons.items() if text}
                    if holding:
                        by, text = next(iter(holding)), "; ".join(holding.values())
                        found.append(Explained(measure, flatter, sharper, by, text))
        return found

    def _by_scale(self, measure: str, flatter: str, sharper: str) -> str:
        """What became of the order under the counterpart; empty where it stands, or without one."""
        counterpart = COUNTERPARTS.get(measure)
        if counterpart not in self.measures or self.certain(counterpart, flatter, sharper):
            return ""
        kept = "turns round" if self.certain(counterpart, sharper, flatter) else "is lost"
        return f"the order {kept} under {counterpart}, which rescaling of layers leaves alone"

    def _by_confidence(self, measure: str, flatter: str, sharper: str) -> str:
        """What became of the order at equal confidence; empty where it stands."""
        if self.matched is None or _certain(self.matched, measure, flatter, sharper):
            return ""
        turned = _certain(self.matched, measure, sharper, flatter)
        gini = {name: self.value(GINI, name).value for name in (flatter, sharper)}
        return (
            f"the order {'turns round' if turned else 'is lost'} once both are equally confident "
            f"(Gini impurity {gini[flatter]:.3g} and {gini[sharper]:.3g})"
        )

    def unchecked(self) -> dict[str, str]:
        """Measures that rescaling of layers moves and nothing here checks for it, and why not."""
        cards = {card.name: card for card in api.measures()}
        found = {}
        for measure in self.measures:
            card = cards.get(measure)  # a file may come from another version
            if measure in CONFOUNDERS or card is None or "layer_rescale" in card.invariant:
                continue
            counterpart = COUNTERPARTS.get(measure)
            if counterpart is None:
                found[measure] = "no measure is known that is like it but for the scale"
            elif counterpart not in self.measures:
                found[measure] = f"{counterpart} could not be measured on all of these networks"
        return found

    def unchecked_texts(self) -> list[str]:
        """The same in sentences, one for each reason."""
        by_reason: dict[str, list[str]] = {}
        for measure, reason in self.unchecked().items():
            by_reason.setdefault(reason, []).append(measure)
        return [
            "Not checked for scale, though rescaling of layers moves the value: "
            f"{_listing(names)}; {reason}."
            for reason, names in by_reason.items()
        ]

    # -- writing -----------------------------------------------------------------------------

    def __str__(self) -> str:
        names = list(self.reports)
        rows = [("measure", *names)]
        for measure in self.measures:
            places = self.places(measure)
            cells = (f"{self.value(measure, n).value:.4g}  #{places[n]}" for n in names)
            rows.append((measure, *cells))
        lines = [aligned(rows), "", *self.findings()]
        return "\n".join(lines)

    def findings(self) -> list[str]:
        """What the table shows, in sentences."""
        lines = ["# is the rank, 1 the flattest; in brackets the ranks that the errors leave open."]
        grouped: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
        for d in self.disagreements():
            one, other = grouped.setdefault((d.flatter, d.sharper), (set(), set()))
            one.add(d.first)
            other.add(d.second)
        for (a, b), (one, other) in grouped.items():
            lines.append(
                f"Disagreement: {a!r} is flatter than {b!r} by {_listing(one)}; sharper by "
                f"{_listing(other)}."
            )
        if not grouped:
            lines.append("No two measures order any two networks in opposite ways beyond errors.")
        for e in self.explained():
            lines.append(
                f"{e.measure}: that {e.flatter!r} looks flatter than {e.sharper!r} is explained by "
                f"{e.by}: {e.text}."
            )
        lines += self.unchecked_texts()
        if self.unmatched:
            lines.append(f"Not compared at equal confidence: {self.unmatched}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types."""
        return {
            "format": FORMAT,
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
            "matched": None
            if self.matched is None
            else {name: report.to_dict() for name, report in self.matched.items()},
            "unmatched": self.unmatched,
            "ranks": {
                measure: {n: dataclasses.asdict(p) for n, p in self.places(measure).items()}
                for measure in self.measures
            },
            "disagreements": [dataclasses.asdict(d) for d in self.disagreements()],
            "explained": [dataclasses.asdict(e) for e in self.explained()],
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
        reports = {name: Report.from_dict(report) for name, report in data["reports"].items()}
        matched = data["matched"]
        if matched is not None:
            matched = {name: Report.from_dict(report) for name, report in matched.items()}
        return cls(reports, matched=matched, unmatched=data["unmatched"])


def compare(
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None = None,
    match_confidence: bool = True,
    on_report: Callable[[str, Report], None] | None = None,
    **options: Any,
) -> Comparison:
    """Measure several networks on the same data and set them side by side.

    Args:
        models: networks in eval mode by name, such as the checkpoints of one training run.
        data: as for `measure`; every network sees all of it.
        measures: names or patterns; None takes those that suit the networks. Added are the
            confounders (weight and activation norms, Gini impurity, activation frequency), and the
            counterparts by which differences are checked for scale.
        match_confidence: measure once more with the logits scaled until all networks are equally
            confident, to see which differences that explains; twice the cost.
        on_report: called with (name, report) as soon as a network is measured.
        **options: everything else that `measure` takes.

    >>> import torch, spiritlevel as sl
    >>> x, y = torch.eye(3), torch.tensor([0, 1, 2])
    >>> small, large = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> found = sl.compare({"small": small, "large": large}, (x, y), measures="head.trace")
    >>> found.measures[:2], "head.kappa" in found.measures
    (['head.trace', 'softmax.gini'], True)
    """
    if not isinstance(models, Mapping) or not all(
        isinstance(m, nn.Module) for m in models.values()
    ):
        raise SpiritlevelError(
            "The 'models' argument must be a mapping of names to modules, {name: model, …}. Got "
            f"{type(models).__name__}."
        )
    reports: dict[str, Report] = {}
    for name, model in models.items():
        reports[name] = measure_for_comparison(model, data, measures=measures, **options)
        if on_report is not None:
            on_report(name, reports[name])
    return matched_comparison(
        reports, models, data, measures=measures, match=match_confidence, **options
    )


def measure_for_comparison(
    model: nn.Module,
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    **options: Any,
) -> Report:
    """One network by the measures asked for, the confounders, and what checks them for scale."""
    if measures is None:
        asked = [card.name for card in api.measures() if card.default]
    else:
        patterns = [measures] if isinstance(measures, str) else measures
        asked = [card.name for pattern in patterns for card in api.measures(pattern)]
    counterparts = [COUNTERPARTS[name] for name in asked if name in COUNTERPARTS]
    also = dict.fromkeys([*CONFOUNDERS, *counterparts])
    return api.measure_also(model, data, also=also, measures=measures, **options)


def matched_comparison(
    reports: Mapping[str, Report],
    models: Mapping[str, nn.Module],
    data: Iterable[Any],
    *,
    measures: str | Sequence[str] | None,
    match: bool,
    **options: Any,
) -> Comparison:
    """From reports of the networks as they are, and measuring them again at equal confidence."""
    if not match or len(reports) < 2:
        return Comparison(reports)
    try:
        copies = equally_confident(models, data, **options)
    except SpiritlevelError as error:
        return Comparison(reports, unmatched=str(error))
    again = {
        name: measure_for_comparison(model, data, measures=measures, **options)
        for name, model in copies.items()
    }
    return Comparison(reports, matched=again)


def _certain(reports: Mapping[str, Report], measure: str, flatter: str, sharper: str) -> bool:
    one, other = reports[flatter][measure], reports[sharper][measure]
    return other.value - one.value > _margin(one, other)


def _margin(one: Measurement, other: Measurement) -> float:
    """What two values must differ by: errors of probes and data together, and the residuals.

    Both networks see the same samples, so the data errors mostly fall together: counting them as
    independent errs on the side of calling too little certain.
    """
    squares = sum((m.stderr or 0.0) ** 2 + (m.data_stderr or 0.0) ** 2 for m in (one, other))
    confidence = float(one.settings.get("confidence", 0.95))
    wide = statistics.NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(squares)
    return wide + (one.residual or 0.0) + (other.residual or 0.0) + _round_off(one, other)


def _round_off(one: Measurement, other: Measurement) -> float:
    return 1e-6 * max(abs(one.value), abs(other.value))


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
