"""Intervals over what runs share: settings with the same optimizer may be alike, and so may seeds.

Six optimizers at two batch sizes and two weight decays are 24 settings. Where the optimizer decides
what becomes of a network, its four settings say hardly more than one, and an interval that counts
all 24 is too narrow. So groups of settings are left out as well, as `clusters` leaves out settings.

The seeds are usually the same in every setting, and with them initial weights and the order of the
data. Where they decide, eight settings with five seeds say hardly more than five runs. So each seed
is left out, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .clusters import MIN_CLUSTERS, clustered
from .correlations import Correlation, Kind

Group = tuple[str, ...]  # the values that its runs share
MOST_AXES = 3  # at once; two nearly always have four pairs of values between them
SEED = "seed"  # as a name of what runs share


def over_shared(
    values: Iterable[float | None],
    target: Iterable[float | None],
    axes: Mapping[str, Sequence[object]],
    *,
    seeds: Sequence[object] = (),
    kind: Kind = "spearman",
    confidence: float = 0.95,
) -> dict[str, Correlation]:
    """By what is shared: the correlation, with an interval that counts groups which share it.

    Args:
        values: of the measure, one a run.
        target: what it should predict.
        axes: what the settings consist of, by name: its value in each run.
        seeds: that of each run; left out: those of one setting only, or unknown.
        kind: "pearson", "spearman" or "kendall".
        confidence: of the intervals.
    """
    values, target = list(values), list(target)
    return {
        name: clustered(
            values, target, groups, kind=kind, confidence=confidence, called=f"groups by {name}"
        )
        for name, groups in groups_that_share(axes, seeds).items()
    }


def groups_that_share(
    axes: Mapping[str, Sequence[object]], seeds: Sequence[object] = ()
) -> dict[str, list[Group]]:
    """The group of each run by the axes that its groups share, and by the seed."""
    return coarsest(axes) | _by_seed(seeds)


def sharing(name: str) -> str:
    """Who shares it, in words.

    >>> sharing("lr"), sharing("seed")
    ('settings with the same lr', 'runs with the same seed')
    """
    return f"{'runs' if name == SEED else 'settings'} with the same {name}"


def may_be_alike(*names: str) -> str:
    """The same of all of them, as the beginning of a sentence.

    >>> may_be_alike("lr", "init", "seed")
    'Settings with the same lr or init and runs with the same seed may be alike, too'
    """
    axes = " or ".join(name for name in names if name != SEED)
    alike = [sharing(name) for name in (axes, SEED) if name and (name != SEED or SEED in names)]
    text = " and ".join(alike)
    return f"{text[0].upper()}{text[1:]} may be alike, too"


def doubt(found: Correlation, shared: Mapping[str, Correlation]) -> str:
    """What is shared that makes a clear correlation unclear if those that share it count once."""
    name = widest({"": found, **shared})
    is_clear_no_more = bool(name) and is_clear(found) and not is_clear(shared[name])
    return name if is_clear_no_more else ""


def is_clear(correlation: Correlation) -> bool:
    """Whether its interval lies on one side of 0."""
    return correlation.low > 0 or correlation.high < 0


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


def uncounted(
    axes: Mapping[str, Sequence[object]], seeds: Sequence[object] = ()
) -> tuple[str, ...]:
    """The axes whose values settings share, if none has values enough to be counted; and the seed.

    >>> uncounted({"lr": [1, 1, 2, 2, 3, 3], "batch": [8, 9] * 3})
    ('lr', 'batch')
    >>> uncounted({"lr": [1, 2, 3, 4] * 2}, seeds=[0] * 4 + [1] * 4)
    ('seed',)
    """
    num_seeds = len(set(map(str, seeds)))
    few = (SEED,) if 1 < num_seeds < min(MIN_CLUSTERS, len(seeds)) else ()
    if coarsest(axes):
        return few
    num_settings = _number(axes, tuple(axes))
    return (*(name for name in axes if 1 < _number(axes, (name,)) < num_settings), *few)


def _by_seed(seeds: Sequence[object]) -> dict[str, list[Group]]:
    groups: list[Group] = [(str(seed),) for seed in seeds]
    return {SEED: groups} if MIN_CLUSTERS <= len(set(groups)) < len(groups) else {}


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(1, min(len(names) - 1, MOST_AXES) + 1):
        yield from itertools.combinations(names, size)


def _number(axes: Mapping[str, Sequence[object]], names: Sequence[str]) -> int:
    return len(set(_groups(axes, names)))


def _groups(axes: Mapping[str, Sequence[object]], names: Sequence[str]) -> list[Group]:
    return [tuple(map(str, each)) for each in zip(*(axes[name] for name in names), strict=True)]
