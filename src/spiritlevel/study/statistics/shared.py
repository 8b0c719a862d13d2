"""Intervals over what settings share: those with the same optimizer may be alike.

Six optimizers at two batch sizes and two weight decays are 24 settings. Where the optimizer decides
what becomes of a network, its four settings say hardly more than one, and an interval that counts
all 24 is too narrow. So groups of settings are left out as well, as `clusters` leaves out settings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .clusters import MIN_CLUSTERS, clustered
from .correlations import Correlation, Kind

Group = tuple[str, ...]  # the values that its runs share
MOST_AXES = 3  # at once; two nearly always have four pairs of values between them


def over_shared(
    values: Iterable[float | None],
    target: Iterable[float | None],
    axes: Mapping[str, Sequence[object]],
    *,
    kind: Kind = "spearman",
    confidence: float = 0.95,
) -> dict[str, Correlation]:
    """By what is shared: the correlation, with an interval that counts groups which share it.

    Args:
        values: of the measure, one a run.
        target: what it should predict.
        axes: what the settings consist of, by name: its value in each run.
        kind: "pearson", "spearman" or "kendall".
        confidence: of the intervals.
    """
    values, target = list(values), list(target)
    return {
        name: clustered(
            values, target, groups, kind=kind, confidence=confidence, called=f"groups by {name}"
        )
        for name, groups in coarsest(axes).items()
    }


def widest(found: Mapping[str, Correlation]) -> str:
    """The name of the correlation with the widest interval; "" where none has one."""
    known = {name: each for name, each in found.items() if not math.isnan(each.low)}
    return max(known, key=lambda name: known[name].high - known[name].low, default="")


def coarsest(axes: Mapping[str, Sequence[object]]) -> dict[str, list[Group]]:
    """The group of each run, by the axes that groups share: as few axes as give groups enough.

    An interval over coarse groups is right for finer ones too, but not the other way round.

    >>> axes = {"lr": [1, 2, 3, 4] * 2, "batch": [8] * 4 + [9] * 4}
    >>> list(coarsest(axes))  # two batch sizes are too few, and both together are the settings
    ['lr']
    """
    chosen: dict[tuple[str, ...], list[Group]] = {}
    num_settings = _number(axes, tuple(axes))
    for names in _subsets(list(axes)):
        if any(set(each) <= set(names) for each in chosen):
            continue
        if MIN_CLUSTERS <= _number(axes, names) < num_settings:
            chosen[names] = _groups(axes, names)
    return {" and ".join(names): groups for names, groups in chosen.items()}


def uncounted(axes: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
    """The axes whose values settings share, if none has values enough to be counted.

    >>> uncounted({"lr": [1, 1, 2, 2, 3, 3], "batch": [8, 9] * 3})
    ('lr', 'batch')
    """
    if coarsest(axes):
        return ()
    num_settings = _number(axes, tuple(axes))
    return tuple(name for name in axes if 1 < _number(axes, (name,)) < num_settings)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(1, min(len(names) - 1, MOST_AXES) + 1):
        yield from itertools.combinations(names, size)


def _number(axes: Mapping[str, Sequence[object]], names: Sequence[str]) -> int:
    return len(set(_groups(axes, names)))


def _groups(axes: Mapping[str, Sequence[object]], names: Sequence[str]) -> list[Group]:
    return [tuple(map(str, each)) for each in zip(*(axes[name] for name in names), strict=True)]
