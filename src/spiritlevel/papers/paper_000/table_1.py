"""Paper 000, Tables 1 and 2: the closed-form trace against automatic differentiation and probes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...content import Cell, Figure, Series, Table
from ..judging.contrasts import factor, line
from ..judging.experiment import Experiment, Outcome, Row
from ..judging.findings import Finding, above, every, fact, verdict
from ..judging.numbers import IntervalEstimate, mean
from ..judging.rows import column, grouped
from .tasks_trace import FUNCTORCH_MIB, IMAGES, KAPPA_ERROR, KERNELS, SECONDS, TRACE_ERROR

WEIGHTS = "task.weights"
EXACT = 1e-9  # relative, in float64: rounding, and no more
WORDS = {  # the methods that are compared with the closed form
    "autograd": "automatic differentiation",
    "functorch": "functorch",
    "hutchinson": "Hutchinson's estimate",
}
JUDGED = ("autograd", "hutchinson")
Place = tuple[str, float, float]  # weights, images, kernels


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """The error of the closed form, and how many times longer every other method takes."""
    groups = _groups(rows)
    slower = {
        place: {method: _slower(group, method) for method in WORDS}
        for place, group in groups.items()
    }
    table = [_row(place, group, slower[place]) for place, group in groups.items()]
    errors = [row[f"{name}/closed"] for row in rows for name in (TRACE_ERROR, KAPPA_ERROR)]
    worst = max(errors)
    missed = _missed(rows)
    ranges = {
        method: [by_method[method].value for by_method in slower.values()] for method in JUDGED
    }
    exact = _exact(errors)
    findings = [exact, *(_longer(method, slower) for method in JUDGED)]
    return Outcome(
        table=Table(
            (
                *("weights", "images", "kernels", "n", "error of the closed form"),
                "error of Hutchinson's estimate",
                *(f"{title}: times the closed form's time" for title in WORDS.values()),
                "MiB that functorch needs",
            ),
            table,
        ),
        figure=Figure(
            "kernels",
            "times the closed form's time",
            [_line(method, rows) for method in WORDS],
            log_y=True,
        ),
        findings=findings,
        # A fast method with wrong results is worth nothing, so speed alone is not "partly".
        agrees=verdict(findings if exact.result == "held" else [exact]),
        conclusion=(
            f"The closed form is within {worst:.1g} of automatic differentiation throughout, where "
            f"Hutchinson's estimate of the trace is off by {missed} on average (n = {missed.n} "
            f"draws of images and probes); {WORDS['autograd']} takes "
            f"{min(ranges['autograd']):.3g} to {max(ranges['autograd']):.3g} times as long as the "
            f"closed form, {WORDS['hutchinson']} {min(ranges['hutchinson']):.3g} to "
            f"{max(ranges['hutchinson']):.3g} times."
        ),
    )


def _groups(rows: Sequence[Row]) -> dict[Place, list[Row]]:
    groups: dict[Place, list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r[WEIGHTS], r[KERNELS], r[IMAGES])):
        groups.setdefault((row[WEIGHTS], row[IMAGES], row[KERNELS]), []).append(row)
    return groups


def _slower(group: Sequence[Row], method: str) -> IntervalEstimate:
    return factor((row[f"{SECONDS}/closed"], row.get(f"{SECONDS}/{method}")) for row in group)


def _missed(rows: Sequence[Row]) -> IntervalEstimate:
    """The error of Hutchinson's estimate over draws.

    Both kinds of weights are measured with the same images and probes, so their errors are nearly
    the same: each draw counts once.
    """
    draws: dict[tuple[float, float, int], list[float]] = {}
    for row in rows:
        draw = (row[IMAGES], row[KERNELS], row["seed"])
        draws.setdefault(draw, []).append(row[f"{TRACE_ERROR}/hutchinson"])
    return mean(statistics.fmean(errors) for errors in draws.values())


def _row(place: Place, group: Sequence[Row], slower: dict[str, IntervalEstimate]) -> list[Cell]:
    weights, images, kernels = place
    closed = max(column(group, f"{TRACE_ERROR}/closed"))
    probed = mean(column(group, f"{TRACE_ERROR}/hutchinson"))
    times = [slower[method] if slower[method].n else "does not fit" for method in WORDS]
    needed = group[0][FUNCTORCH_MIB]
    return [weights, int(images), int(kernels), len(group), closed, probed, *times, needed]


def _line(method: str, rows: Sequence[Row]) -> Series:
    """Times over both kinds of weights, since they do not depend on the kind."""
    ratios = {kernels: _slower(group, method) for kernels, group in grouped(rows, KERNELS).items()}
    timed = {kernels: each for kernels, each in ratios.items() if each.n}
    return line(WORDS[method], list(timed), list(timed.values()))


def _exact(errors: Sequence[float]) -> Finding:
    close = [error <= EXACT for error in errors]  # one by one, because nan is not close
    return fact(
        "the closed form gives trace and relative flatness without error (within 1e-9)",
        all(close),
        f"{sum(close)} of {len(close)} numbers; the largest error is {max(errors):.1g}",
    )


def _longer(method: str, slower: dict[Place, dict[str, IntervalEstimate]]) -> Finding:
    return every(
        f"{WORDS[method]} takes longer (times the closed form's time)",
        [
            above(f"weights {weights}, {images:g} images, {kernels:g} kernels", ratios[method], 1.0)
            for (weights, images, kernels), ratios in slower.items()
        ],
    )
