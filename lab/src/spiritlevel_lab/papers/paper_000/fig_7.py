"""Paper 000, Fig. 7: flatness of the head while a trained network learns another task."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spiritlevel.records.content import Cell, Figure, Table

from ...claims.contrasts import factor, line
from ...claims.experiment import Experiment, Outcome, Row
from ...claims.findings import above, below, estimate, every, fact, verdict, with_added
from ...claims.numbers import IntervalEstimate, mean
from ...claims.rows import column
from ...statistics import spearman
from .tasks_dynamics import SHARES, distinct_shares
from .tasks_transfer import ACCURACY, FLATNESS, FROZEN, HIGH, LOSS, LOW, PEAK, STRATEGIES

TOGETHER = "Spearman, final flatness and accuracy"
P = "p of that correlation (the paper: below this)"
EARLY = (
    "the peak at the high rate comes early: before the middle of training (where it is, in % of "
    "the epochs)"
)
MIDDLE = 50.0  # % of the epochs: nothing later can be called early
WORDS = {LOW: "low rate", HIGH: "high rate", FROZEN: "frozen backbone"}


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Is a frozen backbone sharpest, does a high rate peak early, are flat networks more accurate?

    All strategies of a run start from the same weights, so they are compared run by run.
    """
    against_low, against_high = (
        _ratio(rows, _last(strategy), _last(FROZEN)) for strategy in (LOW, HIGH)
    )
    peak = _ratio(rows, f"{PEAK}/{LOW}", f"{PEAK}/{HIGH}")
    ends = [
        (row.get(_last(strategy)), row.get(f"{ACCURACY}/{strategy}"))
        for row in rows
        for strategy in WORDS
    ]
    together = spearman([flatness for flatness, _ in ends], [accuracy for _, accuracy in ends])
    places = [_place_of_peak(row, HIGH) for row in rows]
    when = mean(place for place in places if place)
    shares = distinct_shares(rows, f"{FLATNESS}/{LOW}")
    fall = _ratio(rows, f"{FLATNESS}/{LOW}/0", _last(LOW))
    steady = mean(_trend(row, LOW, shares) for row in rows)
    table: list[list[Cell]] = [
        [
            WORDS[strategy],
            len(rows),
            *(mean(column(rows, f"{name}/{strategy}")) for name in (ACCURACY, LOSS, PEAK)),
            *(_along(rows, strategy, shares)),
        ]
        for strategy in STRATEGIES
    ]
    findings = [
        every(
            "a frozen backbone ends with larger flatness than both others (ratios)",
            [
                above("over the low rate", against_low, 1.0),
                above("over the high rate", against_high, 1.0),
            ],
        ),
        above(
            "the peak of flatness is higher at the high rate than at the low (ratio of the largest "
            "values after the start)",
            peak,
            1.0,
        ),
        below(
            "networks that end flatter are more accurate: the rank correlation of flatness with "
            "accuracy is negative",
            together,
            paper=experiment.paper_values[TOGETHER],
            comparable=experiment.comparable,
        ),
    ]
    added = [
        below(EARLY, when, MIDDLE)
        if when.n or 0.0 not in places
        else fact(EARLY, False, "there is no peak"),
        every(
            "at the low rate flatness falls smoothly",
            [
                below("at the end over the start", fall, 1.0),
                below("rank correlation with the epochs", steady),
            ],
        ),
    ]
    return Outcome(
        table=Table(
            (
                *("strategy", "n", "test accuracy", "training loss", "largest flatness"),
                *(f"flatness after {each} % of the epochs" for each in shares),
            ),
            table,
        ),
        figure=Figure(
            "% of the epochs",
            "relative flatness of the head",
            [
                line(WORDS[strategy], shares, _along(rows, strategy, shares))
                for strategy in STRATEGIES
            ],
            log_y=True,
        ),
        reproduced_values={
            TOGETHER: estimate(together),
            P: IntervalEstimate(together.p, math.nan, math.nan, together.n),
            "final flatness, frozen backbone": mean(column(rows, _last(FROZEN))),
        },
        findings=[*findings, *added],
        agrees=with_added(verdict(findings), added),
        conclusion=(
            f"At the end the head's relative flatness with a frozen backbone is {against_low} "
            f"times that of the low rate and {against_high} times that of the high rate; the "
            f"largest flatness after the start is at the high rate {peak} times that at the low "
            f"one (n = {peak.n}); {_peaks(places, when)}; at the low rate flatness is multiplied "
            f"by {fall} from start to end; final flatness and test accuracy have a rank "
            f"correlation of {together} (n = {together.n})."
        ),
    )


def _last(strategy: str) -> str:
    return f"{FLATNESS}/{strategy}/100"


def _along(rows: Sequence[Row], strategy: str, shares: Sequence[int]) -> list[IntervalEstimate]:
    return [mean(column(rows, f"{FLATNESS}/{strategy}/{each}")) for each in shares]


def _ratio(rows: Sequence[Row], divisor: str, name: str) -> IntervalEstimate:
    return factor((row.get(divisor), row.get(name)) for row in rows)


def _place_of_peak(row: Row, strategy: str) -> float | None:
    """After how many % of the epochs flatness is largest; 0 if it never is above the start."""
    looks = [(row.get(f"{FLATNESS}/{strategy}/{each}"), each) for each in reversed(SHARES)]
    recorded = [(flatness, each) for flatness, each in looks if flatness is not None]
    return float(max(recorded, key=lambda look: look[0])[1]) if recorded else None


def _peaks(places: Sequence[float | None], when: IntervalEstimate) -> str:
    """Where the peaks are, or that there are none."""
    at_start, known = places.count(0.0), len(places) - places.count(None)
    if at_start == known and known:
        return "at the high rate it never rises above the start, so there is no peak"
    said = f"the peak at the high rate comes after {when} % of the epochs"
    return f"{said}, and {at_start} of {known} runs have none" if at_start else said


def _trend(row: Row, strategy: str, shares: Sequence[int]) -> float:
    """The rank correlation of flatness with the epochs, over all points of one run."""
    return spearman(shares, [row.get(f"{FLATNESS}/{strategy}/{each}") for each in shares]).value
