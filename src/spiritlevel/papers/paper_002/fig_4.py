"""Paper 002, Fig. 4: flatness and a kernel density together bound the gap."""

from __future__ import annotations

from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ...study.statistics import spearman
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Finding, Result, fact, verdict
from ..judging.numbers import IntervalEstimate, mean, share
from ..judging.rows import column, grouped
from .class_separation import FEATURES

SEPARATION = "task.separation"
KAPPA, MISS = "relative.kappa", "bound.representativeness"
DELTA = 0.1  # as in the authors' published code
COVERED = 0.95  # share of data sets whose gap must lie below the bound
TIGHT = 3.0  # the mean bound may be this many times the mean gap


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Gap and bounds by separation; the bound with the authors' δ is judged."""
    table: list[list[Cell]] = []
    gaps: dict[float, IntervalEstimate] = {}
    bounds: dict[float, IntervalEstimate] = {}
    covered: dict[float, IntervalEstimate] = {}
    for separation, group in grouped(rows, SEPARATION).items():
        near = [approximate_bound(row, DELTA) for row in group]
        wide = [approximate_bound(row, theorem_delta(row)) for row in group]
        gaps[separation] = mean(column(group, "gap"))
        bounds[separation] = mean(near)
        covered[separation] = share(b >= row["gap"] for b, row in zip(near, group, strict=True))
        table.append(
            [
                separation,
                len(group),
                gaps[separation],
                bounds[separation],
                covered[separation],
                mean(wide),
            ]
        )
    covers, tight = _checks(gaps, bounds, covered)
    falls = _falls(bounds)
    least = min(each.value for each in covered.values())
    ratios = [bounds[s].value / gaps[s].value for s in gaps]
    findings = [
        fact(
            f"it covers {COVERED:.0%} of the gaps at every separation",
            covers,
            f"{least:.0%} at the worst separation",
        ),
        fact(
            f"its mean is at most {TIGHT:g} times the mean gap at every separation",
            tight,
            f"{min(ratios):.2g} to {max(ratios):.2g} times",
        ),
        Finding(
            "it falls as the classes move apart",
            falls,
            f"from {bounds[min(bounds)]} to {bounds[max(bounds)]}",
        ),
    ]
    return Outcome(
        table=Table(
            (
                "class separation",
                "n",
                "generalization gap",
                f"approximate bound, δ = {DELTA}",
                "share of gaps below it",
                "approximate bound, δ of the theorem",
            ),
            table,
        ),
        figure=Figure(
            "class separation",
            "loss",
            [_line("generalization gap", gaps), _line("approximate bound", bounds)],
        ),
        findings=findings,
        agrees=verdict(findings),
        conclusion=_conclusion(covers, tight, falls, least, ratios),
    )


def approximate_bound(row: Row, delta: float) -> float:
    """Feature robustness by flatness, δ²κ/2m, plus what the kernel density misses."""
    return float(delta**2 * row[KAPPA] / (2 * FEATURES) + row[MISS])


def theorem_delta(row: Row) -> float:
    """The δ of the theorem: |S|^(−1/(4+m)) for m features."""
    return float(row["num_train"] ** (-1 / (4 + FEATURES)))


def _line(name: str, by_separation: dict[float, IntervalEstimate]) -> Series:
    values = list(by_separation.values())
    return Series(
        name,
        list(by_separation),
        [e.value for e in values],
        [e.low for e in values],
        [e.high for e in values],
    )


def _checks(
    gaps: dict[float, IntervalEstimate],
    bounds: dict[float, IntervalEstimate],
    covered: dict[float, IntervalEstimate],
) -> tuple[bool, bool]:
    """Whether the bound covers the gaps, and whether it is tight."""
    return (
        all(c.value >= COVERED for c in covered.values()),
        all(bounds[s].value <= TIGHT * gaps[s].value for s in gaps),
    )


def _falls(bounds: dict[float, IntervalEstimate]) -> Result:
    """Whether the bound falls as the classes move apart; few separations leave that undecided."""
    first, last = bounds[min(bounds)], bounds[max(bounds)]
    trend = spearman(list(bounds), [b.value for b in bounds.values()])
    if not trend.p < 0.05:  # nan where there are too few to tell
        return "undecided"
    return "held" if trend.value < 0 and last.high < first.low else "not held"


def _conclusion(covers: bool, tight: bool, falls: Result, least: float, ratios: list[float]) -> str:
    moves = {"held": "falls", "not held": "does not fall"}.get(falls, "does not clearly fall")
    return (
        f"The approximate bound {'covers' if covers else 'does not cover'} the gap as asked (at "
        f"the worst separation {least:.0%} of the gaps lie below it), "
        f"{'is' if tight else 'is not'} tight (its mean is {min(ratios):.2g} to {max(ratios):.2g} "
        f"times the mean gap) and {moves} as the classes move apart."
    )
