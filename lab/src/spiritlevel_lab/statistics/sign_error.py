"""Robust sign error of Dziugaite et al. 2020 (In Search of Robust Measures of Generalization).

An average can hide a change under which a measure always fails. So the error is taken in every
environment, a change of one hyperparameter from one value to another with all others equal:

    error  = Σ w·(1 − sign(Δmeasure)·sign(Δtarget))/2  /  Σ w        over its pairs of runs
    w      = (h − ½)₊,   h = max(0, 1 − 2·exp(−2·m·(Δtarget/2R)²))²

and the robust error is the largest over environments. h is Hoeffding's guarantee that both targets,
means over m test examples of a loss of range R, are truly in the order in which they came out; the
square is for the two of them. This is what the authors' published code computes, with R = 1 for
the 0-1 loss. Environments with an effective number of pairs (Σw)²/Σw² below 12 are left out, also
as there. A measure that is constant in a pair gets ½, the error of a coin.

With many seeds there are far more pairs than runs. So pairs are never listed for large cells: where
all weigh the same, sorting counts them; otherwise they are weighed a part at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.need import need, number, one_of, or_none

from .grid import Grid, SettingsOfRuns
from .points import Array, Numbers, agreement, finite_points, numpy, signs


@dataclasses.dataclass(frozen=True)
class Environment:
    """One change and how often the measure is wrong about it; nan if every weight is 0."""

    axis: str
    first: str
    second: str
    error: float
    pairs: int
    weight: float
    effective: float  # number of pairs
    others: str = ""  # hyperparameters held fixed, unless pooled

    def __str__(self) -> str:
        change = f"{self.axis}: {self.first} → {self.second}"
        return f"{change} at {self.others}" if self.others else change


@dataclasses.dataclass(frozen=True)
class SignError:
    """Largest and mean error over the environments that have enough pairs."""

    robust: float
    mean: float
    worst: str  # the environment of the largest error
    environments: tuple[Environment, ...]
    too_few: tuple[Environment, ...]  # left out: not enough pairs beyond noise
    n: int
    excluded: int
    rule: str
    reason: str = ""


def sign_error(
    values: Numbers,
    target: Numbers,
    settings: SettingsOfRuns | Grid,
    *,
    num_test: int | None = None,
    loss_range: float = 1.0,
    pooling: Pooling = "change",
    min_effective: float = 12.0,
    seed_key: str = "seed",
) -> SignError:
    """How often the measure orders two runs against their targets, in the worst environment.

    Pairs are all pairs of runs across seeds. A measure that is meant to fall as the gap rises
    (larger is flatter) is passed with its sign turned.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: such as the generalization gap.
        settings: hyperparameters of every run.
        num_test: examples the target is estimated from, for the weights; None weighs all pairs 1.
        loss_range: largest less smallest loss of an example. Cross-entropy has no such bound: give
            a 0-1 gap, or None as `num_test`.
        pooling: "change" pools a change over all values of the other hyperparameters; "cell" makes
            each of these an environment of its own, as the paper does, which needs many seeds.
        min_effective: pairs that an environment must have.
        seed_key: the name of the seed in `settings`.
    """
    _check(num_test, loss_range, pooling, min_effective)
    points = finite_points(values=values, target=target)
    grid = Grid.of(settings, points.n + points.excluded).among(points.kept)
    x, y = points.columns
    if num_test is not None and points.n and abs(y).max() > loss_range:
        raise SpiritlevelError(
            "The 'loss_range' argument must bound the loss behind the target: no mean of it and no "
            f"gap can be larger. Got {loss_range:g} and a target of {abs(y).max():g}. "
            "Cross-entropy has no bound: take the gap of the 0-1 loss, or num_test=None to weigh "
            "all pairs alike."
        )
    weight: PairWeight | None = None
    if num_test is not None:
        weight = functools.partial(hoeffding_weight, num_test=num_test, loss_range=loss_range)
    environments = []
    for axis in grid.axes(but=(seed_key,)):
        changes = changes_along(grid, axis, pooling, seed_key)
        for change, error in zip(changes, errors_of(changes, x, y, weight), strict=True):
            share, pairs, total, effective = error
            first, second = str(change.first), str(change.second)
            environments.append(
                Environment(axis, first, second, share, pairs, total, effective, change.others)
            )
    enough: list[Environment] = []
    too_few: list[Environment] = []
    for environment in environments:  # equal weights reach the bound up to rounding
        reached = environment.effective >= min_effective * (1.0 - 1e-9)
        (enough if reached else too_few).append(environment)
    worst = max(enough, key=lambda e: e.error, default=None)
    return SignError(
        robust=math.nan if worst is None else worst.error,
        mean=sum(e.error for e in enough) / len(enough) if enough else math.nan,
        worst="" if worst is None else str(worst),
        environments=tuple(enough),
        too_few=tuple(too_few),
        n=points.n,
        excluded=points.excluded,
        rule=_rule(num_test, loss_range, pooling, min_effective),
        reason="" if enough else _why_none(environments, min_effective),
    )


def hoeffding_weight(difference: Array, num_test: int, loss_range: float = 1.0) -> Array:
    """(h − ½)₊ of the module's text: 0 for differences within noise, near ½ for certain ones."""
    np = numpy()
    chance = 2.0 * np.exp(-2.0 * num_test * (difference / (2.0 * loss_range)) ** 2)
    return np.maximum(0.0, np.maximum(0.0, 1.0 - chance) ** 2 - 0.5)


def _check(num_test: int | None, loss_range: float, pooling: str, min_effective: float) -> None:
    wanted = "the number of test examples behind the target, or None to weigh all pairs alike"
    need("num_test", num_test, or_none(number(least=1)), wanted)
    need("loss_range", loss_range, number(above=0), "> 0", "The 0-1 loss has 1.")
    need("pooling", pooling, one_of(("change", "cell")), "'change' or 'cell'")
    need("min_effective", min_effective, number(above=0), "> 0", "The paper takes 12.")


def _rule(num_test: int | None, loss_range: float, pooling: str, min_effective: float) -> str:
    weights = "pairs weighted alike"
    if num_test is not None:
        weights = f"Hoeffding weights for {num_test} test examples of range {loss_range:g}"
    others = "others pooled" if pooling == "change" else "others held"
    return f"one hyperparameter changed, {others}; {weights}; ≥ {min_effective:g} effective pairs"


def _why_none(found: list[Environment], min_effective: float) -> str:
    if not found:
        return "no two runs differ in exactly one hyperparameter"
    most = max(e.effective for e in found)
    return (
        f"none of {len(found)} environments has {min_effective:g} effective pairs "
        f"(the most is {most:.3g}): more seeds, or a smaller 'min_effective'"
    )


Pooling = Literal["change", "cell"]
PairWeight = Callable[[Array], Array]  # of the difference of two targets
SMALL = 1 << 12  # pairs of two cells that are listed
AT_ONCE = 1 << 20  # pairs that are compared together
PairError = tuple[float, int, float, float]


@dataclasses.dataclass(frozen=True)
class AxisChange:
    """From one value of a hyperparameter to another; the runs on both sides, cell by cell."""

    first: Hashable
    second: Hashable
    others: str  # hyperparameters held fixed; "" if pooled
    cells: list[tuple[Array, Array]]


@dataclasses.dataclass
class _PairSums:
    """Over the pairs of a change: their number, the wrong ones by weight, weights, squares."""

    pairs: int = 0
    wrong: float = 0.0
    weight: float = 0.0
    squares: float = 0.0

    def add(self, pairs: int, wrong: float, weight: float, squares: float) -> None:
        """Add the sums over more pairs."""
        self.pairs += pairs
        self.wrong += wrong
        self.weight += weight
        self.squares += squares

    def error(self) -> PairError:
        """Weighted error, number of pairs, sum of weights, effective number of pairs."""
        if self.weight == 0.0:
            return math.nan, self.pairs, 0.0, 0.0
        error = min(1.0, self.wrong / self.weight)  # rounding may lead past 1
        return error, self.pairs, self.weight, self.weight**2 / self.squares


def changes_along(grid: Grid, axis: str, pooling: Pooling, seed_key: str) -> list[AxisChange]:
    """Every change of the hyperparameter, over all values of the others or for each of them."""
    changes: dict[tuple[Hashable, Hashable, str], AxisChange] = {}
    names = grid.axes(but=(axis, seed_key))
    for group in grid.groups_along(axis, ignoring=(seed_key,)):
        others = ""
        if pooling == "cell":
            others = ", ".join(f"{name}={grid.value(group[0], name)}" for name in names)
        runs = grid.by_value(axis, group)
        for first, second in itertools.combinations(runs, 2):
            key = (first, second, others)
            change = changes.setdefault(key, AxisChange(*key, []))
            change.cells.append((runs[first], runs[second]))
    return list(changes.values())


def errors_of(
    changes: Sequence[AxisChange], x: Array, y: Array, weight: PairWeight | None
) -> list[PairError]:
    """How often x orders two runs against y, for each change; weight None counts pairs alike."""
    sums = [_PairSums() for _ in changes]
    listed: list[tuple[int, Array, Array]] = []
    waiting = 0
    for i, change in enumerate(changes):
        for first, second in change.cells:
            pairs = len(first) * len(second)
            if pairs > SMALL:
                _add_large(sums[i], x, y, first, second, weight)
                continue
            listed.append((i, first, second))
            waiting += pairs
            if waiting > AT_ONCE:
                _add_listed(sums, x, y, listed, weight)
                listed, waiting = [], 0
    _add_listed(sums, x, y, listed, weight)
    return [each.error() for each in sums]


def _add_listed(
    sums: Sequence[_PairSums],
    x: Array,
    y: Array,
    cells: Sequence[tuple[int, Array, Array]],
    weight: PairWeight | None,
) -> None:
    """Add all pairs of small cells, from one list of pairs."""
    np = numpy()
    if not cells:
        return
    one = np.concatenate([np.repeat(first, len(second)) for _, first, second in cells])
    other = np.concatenate([np.tile(second, len(first)) for _, first, second in cells])
    counts = [len(first) * len(second) for _, first, second in cells]
    places = np.repeat([i for i, *_ in cells], counts)
    wrong, weights = _compared(x[one], x[other], y[one], y[other], weight)
    length = int(places[-1]) + 1
    columns = [
        np.bincount(places, values, length) for values in (weights * wrong, weights, weights**2)
    ]
    pairs = np.bincount(places, minlength=length)
    for i in np.unique(places):
        sums[i].add(int(pairs[i]), *(float(column[i]) for column in columns))


def _add_large(
    sums: _PairSums, x: Array, y: Array, first: Array, second: Array, weight: PairWeight | None
) -> None:
    """Add all pairs of two large cells, without a list of them."""
    np = numpy()
    pairs = len(first) * len(second)
    if weight is None:
        both = np.concatenate([first, second])
        of_both, *of_each = (agreement(x[runs], y[runs]) for runs in (both, first, second))
        across = of_both - sum(of_each)
        sums.add(pairs, (pairs - across / 2) / 2, float(pairs), float(pairs))
        return
    for part in np.array_split(first, math.ceil(pairs / AT_ONCE)):
        wrong, weights = _compared(x[part][:, None], x[second], y[part][:, None], y[second], weight)
        total, squares = float(weights.sum()), float((weights**2).sum())
        sums.add(weights.size, float((weights * wrong).sum()), total, squares)


def _compared(
    x: Array, other_x: Array, y: Array, other_y: Array, weight: PairWeight | None
) -> tuple[Array, Array]:
    """Of each pair: 1 where x orders it against y, ½ where one of them is tied; and its weight."""
    wrong = (1.0 - signs(x, other_x) * signs(y, other_y)) / 2
    return wrong, numpy().ones_like(wrong) if weight is None else weight(y - other_y)
