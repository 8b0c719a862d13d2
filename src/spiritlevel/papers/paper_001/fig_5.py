"""Paper 001, Fig. 5: when the sharpness of augmented and plain training begins to differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from ...content import Cell, Table
from ..judging.contrasts import line
from ..judging.experiment import Experiment, Outcome, Row, titled
from ..judging.findings import above, verdict
from ..judging.numbers import IntervalEstimate, mean
from ..judging.rows import at_points, column
from ..recipes.figures import log_figure
from .tasks_points import TEST, TRAIN, steps_at

VARIANT, POINTS = "variant", 8
LARGEST, TRACE = MEASURES = ("curvature.lambda_max", "curvature.ggn_trace")
STANDARD, FIXED = ("plain", "augmented"), ("plain, norms fixed", "augmented, norms fixed")
FITTED = 0.9  # training accuracy of the plain network at the paper's dashed line


def analyse(experiment: Experiment, rows: Sequence[Row]) -> Outcome:
    """Distance of the two curves before and after the plain network is fitted, seed by seed."""
    by_name = {name: [r for r in rows if r[VARIANT] == name] for name in (*STANDARD, *FIXED)}
    table: list[list[Cell]] = []
    lines = []
    for name, group in by_name.items():
        points = range(1, POINTS + 1)
        means = [
            [mean(column(group, f"{n}/{p}")) for n in (TRAIN, TEST, *MEASURES)] for p in points
        ]
        steps = steps_at(group, POINTS)
        table += [[name, s, len(group), *e] for s, e in zip(steps, means, strict=True)]
        lines.append(line(name, steps, [e[2] for e in means]))
    before, later, sooner = _apart(by_name, LARGEST)
    plain = by_name[STANDARD[0]]
    fitted = sum(any(a >= FITTED for a in at_points(row, TRAIN)) for row in plain)
    findings = [
        above("eigenvalues are further apart once the plain network is fitted", later),
        above("before that they are further apart with fixed norms than without", sooner),
    ]
    return Outcome(
        table=Table(("training", "batches", "n", TRAIN, TEST, *MEASURES), table),
        figure=log_figure("batches", "largest eigenvalue of the Hessian", lines),
        findings=findings,
        agrees=verdict(findings),
        more=[_with_trace(by_name)],
        conclusion=(
            "The distance between the logarithms (to base 10) of the two eigenvalues is "
            f"{before} before the plain network reaches {FITTED:.0%}, changes by {later} "
            f"afterwards (n = {later.n}: {fitted} of {len(plain)} plain networks reach it), and is "
            f"larger by {sooner} before with norms held fixed (n = {sooner.n})."
        ),
    )


def _apart(
    groups: Mapping[str, Sequence[Row]], name: str
) -> tuple[IntervalEstimate, IntervalEstimate, IntervalEstimate]:
    """Distance before the plain network is fitted; its change after that, and with fixed norms."""
    before, after = distances(groups[STANDARD[0]], groups[STANDARD[1]], name)
    fixed_before, _ = distances(groups[FIXED[0]], groups[FIXED[1]], name)
    return mean(before.values()), _difference(after, before), _difference(fixed_before, before)


def _with_trace(groups: Mapping[str, Sequence[Row]]) -> Table:
    return titled(
        "The same with the trace",
        "The paper's caption says that the figure shows the largest eigenvalue, its text that it "
        "shows the trace. The eigenvalue is judged; this table has the distances of both, each "
        "between logarithms to base 10. The trace is that of the Gauss-Newton matrix, which was "
        "recorded.",
        Table(
            (
                "number",
                "distance before",
                "change afterwards",
                "extra distance, norms fixed",
            ),
            [[name, *_apart(groups, name)] for name in (LARGEST, TRACE)],
        ),
    )


def distances(
    plain: Sequence[Row], augmented: Sequence[Row], name: str = LARGEST
) -> tuple[dict[int, float], dict[int, float]]:
    """Mean of |log10 a − log10 b| by seed: until the plain network is fitted, and from then on.

    A seed without such points has no entry.
    """
    others = {row["seed"]: row for row in augmented}
    before: dict[int, float] = {}
    after: dict[int, float] = {}
    for row in plain:
        if row["seed"] not in others:
            continue
        pairs = zip(
            at_points(row, TRAIN),
            at_points(row, name),
            at_points(others[row["seed"]], name),
            strict=False,  # one of them may have diverged
        )
        apart = [
            (accuracy, abs(math.log10(a / b)))
            for accuracy, a, b in pairs
            if a > 0 and b > 0  # a trace rounds to 0 where outputs are one-hot
        ]
        fitted = next((i for i, (accuracy, _) in enumerate(apart) if accuracy >= FITTED), None)
        parts = (apart[:fitted], [] if fitted is None else apart[fitted:])
        for by_seed, part in zip((before, after), parts, strict=True):
            if part:
                by_seed[row["seed"]] = statistics.fmean(distance for _, distance in part)
    return before, after


def _difference(changed: dict[int, float], plain: dict[int, float]) -> IntervalEstimate:
    return mean(changed[seed] - plain[seed] for seed in changed if seed in plain)
