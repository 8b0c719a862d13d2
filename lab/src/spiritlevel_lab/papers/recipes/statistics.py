"""The kinds of numbers that a recipe can ask for.

A number is a mapping with its kind and what it is of: `{mean: COLUMN}`, `{share: COLUMN}` and
`{count: COLUMN, is: VALUE}`; `{spread: COLUMN}`, a standard deviation; `{range: COLUMN}`, both ends
as text; paired by seed `{difference: COLUMN, against: GROUP}`, `{factor: COLUMN, against: GROUP}`
(or `to: GROUP`, which it then is in the place of this one), or within a group `between` two values
of a column, in pairs that are `alike` in others; `{span: COLUMN}`, the largest over the smallest;
and as texts `{lower: COLUMN, against:
GROUP}`, in how many pairs, and `{pairs: seed, against: GROUP}`, which are not there; `{along: [X,
Y]}`, the mean correlation of X/1, X/2, … with Y/1, Y/2, … of each run; and
`{spearman: [X, Y]}`, with `fixed` columns and the widest interval that counts `settings`,
`{within: [X, Y]}` such `settings`, and `{pearson: [X, Y]}`, with `fixed` columns,
`log: x` or `squared: true`, or such an interval. `of` names the group, without which
all runs count; `among` chooses runs by their values.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from spiritlevel.records.content import IntervalEstimate, plain

from ...claims.contrasts import difference, factor, factor_by_seed, lower_in
from ...claims.experiment import Row
from ...claims.numbers import as_correlation, logarithms, mean, share
from ...claims.population import squared
from ...claims.rows import at_points, column
from ...claims.settings import judged_of, levels_of, partial_of, within_estimate
from ...statistics import Correlation, Judged, partial_correlation, pearson, spearman
from .runs import GroupedRuns, Spec, among

Number = IntervalEstimate | Correlation | Judged | float | str


def computed(spec: Spec, runs: GroupedRuns, group: Any = None) -> Number:
    """The number of a group, or of the group that the number names, or of all runs."""
    if group is not None:
        spec = {**spec, "of": group}
    rows = runs.named(spec["of"]) if "of" in spec else runs.rows
    if "among" in spec:
        rows = among(rows, spec["among"])
    kind = next(key for key in spec if key in KINDS)
    return KINDS[kind](spec, rows, runs)


def _mean(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    return mean(column(rows, spec["mean"]))


def _share(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    return share(value == 1 for value in column(rows, spec["share"]))


def _count(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    return sum(value == spec["is"] for value in column(rows, spec["count"]))


def _spread(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    """The standard deviation over runs; nan for a single one."""
    found = column(rows, spec["spread"])
    values = [value for value in found if value is not None and math.isfinite(value)]
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return IntervalEstimate(spread, math.nan, math.nan, len(values))


def _difference(spec: Spec, rows: Sequence[Row], runs: GroupedRuns) -> Number:
    return difference(rows, runs.named(spec["against"]), spec["difference"])


def _factor(spec: Spec, rows: Sequence[Row], runs: GroupedRuns) -> Number:
    if "between" in spec:
        [(name, (first, second))] = spec["between"].items()
        keys = [tuple(row[each] for each in spec["alike"]) for row in rows]
        before, after = (
            {k: r[spec["factor"]] for k, r in zip(keys, rows, strict=True) if r[name] == value}
            for value in (first, second)
        )
        return factor((before[key], value) for key, value in after.items() if key in before)
    if "to" in spec:
        return factor_by_seed(rows, runs.named(spec["to"]), spec["factor"])
    return factor_by_seed(runs.named(spec["against"]), rows, spec["factor"])


def _lower(spec: Spec, rows: Sequence[Row], runs: GroupedRuns) -> Number:
    return lower_in(rows, runs.named(spec["against"]), spec["lower"])


def _pairs(spec: Spec, rows: Sequence[Row], runs: GroupedRuns) -> Number:
    """How many seeds both groups have, and which ones are missing."""
    seeds = {row["seed"] for group in runs.groups.values() for row in group}
    both = {spec["against"]: runs.named(spec["against"]), spec["of"]: rows}
    there = {group: {row["seed"] for row in of_group} for group, of_group in both.items()}
    gone = [
        f"no run of {group} with seed {', '.join(map(str, sorted(seeds - own)))}"
        for group, own in there.items()
        if seeds - own
    ]
    return "; ".join([f"n = {len(set.intersection(*there.values()))}", *gone])


def _along(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    """The mean over runs of the rank correlation of two numbers along each run."""
    points = ([at_points(row, name) for name in spec["along"]] for row in rows)
    return as_correlation(mean(spearman(*both).value for both in points))


def _spearman(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    x, y = spec["spearman"]
    if "fixed" in spec:
        return partial_of(rows, x, y, spec["fixed"], spec.get("settings", ()))
    return judged_of(rows, y, x, spec.get("settings", ()))


def _within(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    x, y = spec["within"]
    found = levels_of(rows, x, y, spec["settings"])
    inside = None if found is None else within_estimate(found)
    return mean([]) if inside is None else inside


def _pearson(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    first, second = spec["pearson"]
    if "settings" in spec:
        log = spec.get("log") == "x"
        return judged_of(rows, first, second, spec["settings"], "pearson", log=log)
    x, y = column(rows, first), column(rows, second)
    if "fixed" in spec:
        return partial_correlation(x, y, {name: column(rows, name) for name in spec["fixed"]})
    if "log" in spec:
        x, y = (logarithms(x), y) if spec["log"] == "x" else (x, logarithms(y))
    found = pearson(x, y)
    return squared(found) if spec.get("squared") else found


def _span(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    values = column(rows, spec["span"])
    return max(values) / min(values) if values else math.nan


def _range(spec: Spec, rows: Sequence[Row], _: GroupedRuns) -> Number:
    """The extremes of single runs: means of groups would hide the worst of them."""
    values = [value for value in column(rows, spec["range"]) if value is not None]
    return f"{plain(min(values), 3)} and {plain(max(values), 3)}"


KINDS: dict[str, Callable[[Spec, Sequence[Row], GroupedRuns], Number]] = {
    "mean": _mean,
    "share": _share,
    "count": _count,
    "spread": _spread,
    "difference": _difference,
    "factor": _factor,
    "lower": _lower,
    "pairs": _pairs,
    "along": _along,
    "spearman": _spearman,
    "within": _within,
    "pearson": _pearson,
    "range": _range,
    "span": _span,
}
