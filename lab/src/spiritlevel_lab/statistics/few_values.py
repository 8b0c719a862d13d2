"""Axes with few values, held fixed: two optimizers cannot be counted, only compared within.

Four learning rates can be left out in turn, and the interval counts them. Where one of two batch
sizes decides, four networks say no more than one, and an interval over anything else calls 20 to
40 % of true nulls clear. So the means of axes with two or three values are taken out, as a
confounder is, and what judges is wide enough for the correlation with and without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from .clusters import MIN_CLUSTERS, SEED, groups_that_share, number_of
from .points import numpy

MIN_LEFT = 5  # differences between settings; with fewer, too little is left to judge by


@dataclasses.dataclass(frozen=True)
class Design:
    """What the runs of a population share: what is left out in turn, and what is held fixed."""

    settings: Sequence[Hashable] | None  # of each run; None: no setting is repeated
    groups: Mapping[str, Sequence[Hashable]]  # by what they share, the group of each run
    few: tuple[str, ...]  # axes with two or three values, and the seed if it has as few
    held: Mapping[str, Sequence[float]]  # columns of 0 and 1 that say those values
    left: int  # differences between settings once the means of those axes are fixed

    @classmethod
    def of(
        cls,
        settings: Sequence[Hashable] | None,
        axes: Mapping[str, Sequence[object]],
        seeds: Sequence[object] = (),
    ) -> Design:
        """Read it off the axes and the seeds of the runs.

        >>> rates, batches = [1, 2, 3, 4, 5] * 2, [8] * 5 + [9] * 5
        >>> found = Design.of(None, {"lr": rates, "batch": batches})
        >>> list(found.groups), found.few, found.left
        (['lr'], ('batch',), 8)
        """
        num_settings = number_of(axes, tuple(axes))
        few = [name for name in axes if 1 < number_of(axes, (name,)) < num_settings]
        few = [name for name in few if number_of(axes, (name,)) < MIN_CLUSTERS]
        columns = {each: column for name in few for each, column in _columns(name, axes[name])}
        left = num_settings - _rank(columns, max(map(len, axes.values()), default=0))
        seeds = seeds if settings is not None else ()
        if 1 < len(set(map(str, seeds))) < min(MIN_CLUSTERS, len(seeds)):
            few.append(SEED)
            columns |= dict(_columns(SEED, seeds))
        return cls(settings, groups_that_share(axes, seeds), tuple(few), columns, left)

    @property
    def is_honest(self) -> bool:
        """Whether enough is left to judge by, whichever axis decides."""
        return self.left >= MIN_LEFT or not any(name != SEED for name in self.few)

    @property
    def reason(self) -> str:
        """Why there is no honest interval; "" where there is one."""
        if self.is_honest:
            return ""
        axes = [name for name in self.few if name != SEED]
        left = max(0, self.left)
        differences = "1 difference" if left == 1 else f"{left} differences"
        return (
            f"any of {listed(axes)} may decide, none has {MIN_CLUSTERS} values to be counted, and "
            f"with them fixed {differences} between settings would be left; {MIN_LEFT} are needed"
        )


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["lr", "batch_size", "seed"])
    'lr, batch_size and seed'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _columns(name: str, column: Sequence[object]) -> list[tuple[str, list[float]]]:
    """One for each value but the first."""
    texts = list(map(str, column))
    return [
        (f"{name} = {value}", [float(text == value) for text in texts])
        for value in list(dict.fromkeys(texts))[1:]
    ]


def _rank(columns: Mapping[str, Sequence[float]], num_runs: int) -> int:
    """How many numbers the mean and these columns fix."""
    np = numpy()
    return int(np.linalg.matrix_rank(np.array([[1.0] * max(1, num_runs), *columns.values()])))
