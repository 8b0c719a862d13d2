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
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable

from spiritlevel.ground.errors import SpiritlevelError, brief

from ._arrays import Array, finite_points, numpy
from .changes import (
    PairWeight,
    Pooling,
    changes_along,
    errors_of,
)
from .neighbours import Grid, Settings


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
    values: Iterable[float | None],
    target: Iterable[float | None],
    settings: Settings | Grid,
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
    if num_test is not None and num_test < 1:
        raise SpiritlevelError(
            "The 'num_test' argument must be the number of test examples behind the target, or "
            f"None to weigh all pairs alike. Got {brief(num_test)}."
        )
    if not loss_range > 0:
        raise SpiritlevelError(
            f"The 'loss_range' argument must be > 0. Got {brief(loss_range)}. The 0-1 loss has 1."
        )
    if pooling not in ("change", "cell"):
        raise SpiritlevelError(
            f"The 'pooling' argument must be 'change' or 'cell'. Got {brief(pooling)}."
        )
    if not min_effective > 0:
        raise SpiritlevelError(
            f"The 'min_effective' argument must be > 0. Got {brief(min_effective)}. The paper "
            "takes 12."
        )


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
