"""Paper 004, its table: accuracy, flatness and time for five weights of the Tr(H²)/B penalty."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from ...pages.content import Cell, Figure, Series, Table
from ..judging.contrasts import difference
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import NOT_YET, Finding, Result, fact, verdict
from ..judging.numbers import IntervalEstimate, mean
from ..judging.numbers import plain as shown
from ..judging.rows import column, grouped
from .tasks_flatness_penalty import BEST, FLATNESS, SECONDS

WEIGHT, FINAL = "task.weight", "test_accuracy"
MODERATE = 0.01  # the weight the paper recommends
PAPER = {  # λ: final accuracy, best accuracy, average flatness, seconds
    0.0: (0.2633, 0.2800, 0.0, 60.85),
    0.001: (0.2633, 0.2833, 23.050173, 2290.77),
    0.01: (0.2700, 0.2783, 10.739012, 2433.53),
    0.1: (0.2667, 0.2967, 4.144254, 2203.87),
    1.0: (0.2583, 0.2983, 1.549933, 2337.86),
}
COLUMNS = ("final accuracy", "best accuracy", "average flatness", "time over λ = 0")


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Does flatness fall with λ, and is the accuracy kept at the recommended weight?"""
    groups = grouped(rows, WEIGHT)
    plain = groups.get(0.0, [])
    unit = statistics.median(column(plain, SECONDS)) if plain else math.nan
    ours: dict[float, list[IntervalEstimate]] = {}
    for weight, group in groups.items():
        ratios = [seconds / unit for seconds in column(group, SECONDS)]
        ours[weight] = [mean(column(group, name)) for name in (FINAL, BEST, FLATNESS)]
        ours[weight].append(mean(ratios))
    table: list[list[Cell]] = [[w, len(groups[w]), *numbers] for w, numbers in ours.items()]
    flatness = [numbers[2].value for numbers in ours.values()]
    falls = all(a > b for a, b in itertools.pairwise(flatness)) if len(ours) > 1 else None
    change = difference(groups.get(MODERATE, []), plain, FINAL)
    accuracy_kept: Result = (
        "held" if change.value >= 0.0 else "not held" if change.high < 0.0 else "undecided"
    )
    findings = [
        fact(
            "flatness falls with every step of λ", falls, ", ".join(map(shown, flatness)) or NOT_YET
        ),
        Finding(f"the final accuracy at λ = {MODERATE:g} is kept", accuracy_kept, change),
    ]
    return Outcome(
        table=Table(("λ", "n", *COLUMNS), table),
        figure=Figure(
            "λ (0 is drawn at 0.0001)",
            "average Tr(H²)/B",
            [_line([max(w, 1e-4) for w in ours], [numbers[2] for numbers in ours.values()])],
            log_x=True,
            log_y=True,
        ),
        reproduced_values={
            f"{name}, λ = {weight:g}": numbers
            for weight, estimates in ours.items()
            for name, numbers in zip(COLUMNS, estimates, strict=True)
        },
        findings=findings,
        agrees=verdict(findings),
        conclusion=_conclusion(
            falls, change, ours[MODERATE][3] if plain and MODERATE in ours else None
        ),
    )


def _conclusion(falls: bool | None, change: IntervalEstimate, cost: IntervalEstimate | None) -> str:
    """As much as the networks show: those of some weights may not be trained yet."""
    said = []
    if falls is not None:
        verb = "falls" if falls else "does not fall"
        said.append(f"the average of Tr(H²)/B {verb} with every step of λ")
    if change.n:
        said.append(
            f"at λ = {MODERATE:g} the final accuracy changes by {change} (paired by seed, n = "
            f"{change.n})"
        )
    if cost is not None:
        theirs = PAPER[MODERATE][3] / PAPER[0.0][3]
        said.append(
            f"training takes {cost} times as long as without the penalty, not {theirs:.0f} times"
        )
    if not said:
        return "These networks show no part of it yet."
    text = ", and ".join(filter(None, ("; ".join(said[:-1]), said[-1])))
    return f"{text[0].upper()}{text[1:]}."


def _line(x: list[float], estimates: list[IntervalEstimate]) -> Series:
    return Series(
        "here",
        x,
        [e.value for e in estimates],
        [e.low for e in estimates],
        [e.high for e in estimates],
    )
