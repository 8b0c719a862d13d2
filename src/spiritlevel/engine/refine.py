"""Spend draws until an interval is as narrow as asked, and say what would have sufficed.

This is the only loop that does. What it draws is an object, which says how far it has come; an
estimator is a subclass of `AbstractDraws`, and nothing else needs to know of it.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable

from ..math.student import t_quantile
from .estimate import Estimate, estimate_of_draws
from .precision import Precision
from .purse import FORWARD_BACKWARDS, PASS, PRODUCT

GROWTH = 4  # largest factor by which a stage may multiply the number of draws
COARSE = 0.25  # of the value: an interval up to there is an answer where a budget ends the draws


@dataclasses.dataclass(frozen=True)
class Outlook:
    """What the draws so far say about those to come."""

    enough: float  # draws in all that would do, as far as can be told; may be infinite
    wanted: int  # draws in all after the next stage, which does not trust `enough` too far
    left: int  # draws that the passes still allow
    stderr: float  # that would do


class AbstractDraws(abc.ABC):
    """Random draws of a number, and what they say about it so far."""

    pilot = 0  # draws before the first look
    least = 1  # draws at a time
    passes_a_draw = 1
    price, price_of_stage = PRODUCT, PASS  # of a pass, and of going over the data for some of them

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """Draws that the estimate rests on."""

    @property
    def passes(self) -> int:
        """Passes over the data spent so far, also on draws that the estimate does not rest on."""
        return self.count * self.passes_a_draw

    @abc.abstractmethod
    def draw(self, count: int) -> None:
        """Take `count` more draws."""

    @abc.abstractmethod
    def estimate(self) -> Estimate:
        """The number that is to be as precise as asked."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be drawn."""
        return False

    @property
    def is_trusted(self) -> bool:
        """Whether there are enough draws to trust their error."""
        return True

    def drawn_part(self) -> Estimate:
        """The part of it that more draws make more precise: usually all of it."""
        return self.estimate()

    def next_stage(self, estimate: Estimate, enough: float) -> int:
        """How many draws to have before the next look, if `enough` seem to do."""
        return math.ceil(1.05 * min(enough, GROWTH * self.count))

    def shortcut(self, outlook: Outlook) -> bool:
        """Take a cheaper way than the draws ahead, if there is one; whether it was taken."""
        return False

    # -- for the advice ----------------------------------------------------------------------

    @property
    def exact_at(self) -> float:
        """The max_passes from which on the value is exact; infinite if it never is."""
        return math.inf

    def promised(self, enough: float, estimate: Estimate) -> int:
        """A number of draws that will probably do, if `enough` do by this estimate."""
        return cautious_count(enough, estimate.dof)

    def passes_for(self, count: int) -> int:
        """The max_passes that allows so many draws."""
        return self.passes + (count - self.count) * self.passes_a_draw

    def out_of_reach(self, asked: Precision) -> str:
        """What to do where no number of draws is known to suffice."""
        return f"Try max_passes={4 * asked.max_passes}."


class MeanOfDraws(AbstractDraws):
    """The mean of independent draws of a skewed number, such as the rise of a loss under noise."""

    price, price_of_stage = 1 / 3, 0.0  # of a forward

    def __init__(
        self, take: Callable[[range], list[float]], *, pilot: int, passes_a_draw: int = 1
    ) -> None:
        """`take` returns the values of draws by their numbers."""
        self._take = take
        self.pilot, self.passes_a_draw = pilot, passes_a_draw
        self.values: list[float] = []

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    def draw(self, count: int) -> None:
        """Take the values of the next draws."""
        self.values += self._take(range(self.count, self.count + count))

    def estimate(self) -> Estimate:
        """Their mean; a little less sure than usual, as few values may all be small by chance."""
        return estimate_of_draws(self.values)


def first_look(draws: AbstractDraws, asked: Precision) -> None:
    """Draw the pilot as far as the passes allow, and at least the two that an error needs."""
    more = max(2 - draws.count, min(draws.pilot - draws.count, _left(draws, asked)))
    if more > 0 and not draws.complete:
        draws.draw(more)


def refine(draws: AbstractDraws, asked: Precision, rtol: float | None = None) -> Estimate:
    """Draw until the estimate is within `rtol`, by default that asked for, or passes are used up.

    While passes are left for at least as many draws as are taken at a time, it goes on.
    """
    rtol = asked.rtol if rtol is None else rtol
    first_look(draws, asked)
    while True:
        estimate = draws.estimate()
        if draws.complete or (is_precise(estimate, asked, rtol) and draws.is_trusted):
            return estimate
        outlook = _outlook(draws, estimate, asked, rtol)
        if draws.shortcut(outlook):
            continue
        if outlook.left < draws.least:
            return estimate
        draws.draw(min(outlook.wanted - draws.count, outlook.left))


def is_precise(estimate: Estimate, asked: Precision, rtol: float | None = None) -> bool:
    """Whether the interval is as narrow as asked."""
    rtol = asked.rtol if rtol is None else rtol
    return estimate.variance == 0.0 or estimate.within(rtol, asked.confidence)


def is_accepted(estimate: Estimate, asked: Precision) -> bool:
    """Whether the interval is narrow enough for an answer, if not as narrow as asked.

    Where a budget ends the draws, the precision is what the budget allows.
    """
    if asked.purse is None:
        return is_precise(estimate, asked)
    return is_precise(estimate, asked, max(COARSE, asked.rtol))


def sufficient_count(draws: AbstractDraws, asked: Precision) -> float:
    """How many draws in all would bring the estimate within what was asked for."""
    return next_count(draws.estimate(), draws.drawn_part(), draws.count, asked)


def passes_that_suffice(
    draws: AbstractDraws, asked: Precision, estimate: Estimate | None = None
) -> float:
    """A `max_passes` that would probably have sufficed; more than was spent, and maybe infinite.

    `estimate` is what is judged, if it is not the draws' own but a function of it.
    """
    whole = draws.estimate() if estimate is None else estimate
    part = draws.drawn_part() if estimate is None else estimate
    enough = next_count(whole, part, draws.count, asked)
    if math.isinf(enough):
        return math.inf
    count = max(draws.promised(enough, whole), draws.count + draws.least)
    return draws.passes_for(count)


def advice(draws: AbstractDraws, asked: Precision, estimate: Estimate | None = None) -> str:
    """What would have sufficed, or what to do; `estimate` is as in `passes_that_suffice`."""
    if (draws.estimate() if estimate is None else estimate).unknown:
        return f"So few probes give no interval. {for_more(draws, asked).capitalize()}."
    passes = passes_that_suffice(draws, asked, estimate)
    if math.isinf(passes):
        return draws.out_of_reach(asked)
    if _ended_by_budget(draws, asked):
        more = (passes - draws.passes) * draws.price + draws.price_of_stage
        return beyond_budget(asked, more)
    if draws.exact_at <= passes:
        return f"max_passes={draws.exact_at:.0f} would have given the exact value."
    return would_have_sufficed(passes)


def for_more(draws: AbstractDraws, asked: Precision) -> str:
    """What brings more draws: where passes are left, it is the precision that asks for no more."""
    if _ended_by_budget(draws, asked):
        return "raise the budget"
    return "raise max_passes" if _left(draws, asked) < draws.least else "lower rtol"


def beyond_budget(asked: Precision, more: float) -> str:
    """The sentence that says what the precision would cost that a budget did not allow."""
    assert asked.purse is not None
    return (
        f"The budget of {asked.purse.budget:g} {FORWARD_BACKWARDS} allows no more, and that would "
        f"take about {more:.2g} more: ask for it by name, or raise the budget."
    )


def would_have_sufficed(passes: float) -> str:
    """The sentence that names a budget.

    >>> would_have_sufficed(240)
    'max_passes=240 would have sufficed.'
    """
    return f"max_passes={passes:.0f} would have sufficed."


def missed(draws: AbstractDraws, asked: Precision, estimate: Estimate) -> str:
    """What an estimate from these draws reached instead of what was asked for, and what to do."""
    margin, share = estimate.half_width(asked.confidence), f"{asked.confidence:.0%}"
    if margin >= abs(estimate.value):
        exact = math.isfinite(draws.exact_at)
        at = f" ({draws.exact_at:.0f} gives the exact value)" if exact else ""
        return (
            f"the {share} interval ±{margin:.2g} contains 0, so a relative precision has no "
            f"meaning yet. Raise max_passes{at}, or read the interval."
        )
    return f"{reached(estimate, asked)} {advice(draws, asked)}"


def reached(estimate: Estimate, asked: Precision) -> str:
    """How narrow the interval is, and how narrow it should be."""
    relative = estimate.half_width(asked.confidence) / abs(estimate.value)
    return f"reached ±{relative:.1%} at {asked.confidence:.0%}, asked for ±{asked.rtol:.1%}."


def next_count(
    estimate: Estimate, part: Estimate, count: int, asked: Precision, rtol: float | None = None
) -> float:
    """How many draws in all would suffice, if `count` draws gave `part` of `estimate`.

    >>> whole = Estimate(10.0, variance=1.0)
    >>> round(next_count(whole, whole, 10, Precision(rtol=0.1)))      # (1.96 / 1)² · 10
    38
    """
    margin = (asked.rtol if rtol is None else rtol) * abs(estimate.value)
    if margin == 0.0 or estimate.unknown:
        return math.inf
    half_width = estimate.half_width(asked.confidence)
    quantile = half_width / estimate.stderr if estimate.variance else 0.0
    allowed = (margin / quantile) ** 2 if quantile else math.inf
    rest = allowed - (estimate.variance - part.variance)  # what the other parts leave
    return count * part.variance / rest if rest > 0 else math.inf


def cautious_count(count: float, dof: float) -> int:
    """A number of draws that will probably do; `count` follows from a variance with this `dof`.

    >>> cautious_count(100, 1e9), cautious_count(100, 18)
    (106, 149)
    """
    # a variance has a relative standard deviation of √(2/dof); in nine cases of ten this is enough
    return math.ceil(count * (1.05 + 1.3 * math.sqrt(2.0 / max(dof, 1.0))))


def promised_count(count: float, estimate: Estimate) -> int:
    """A number of draws that will probably do, if `count` would suffice by `estimate`.

    The tolerance is relative, and the value itself may be too large by chance: then more draws are
    needed. In nine cases of ten the value is not below the one assumed here.

    >>> sharp, vague = Estimate(10.0, 0.01, dof=18), Estimate(10.0, 1.0, dof=18)
    >>> promised_count(100, sharp), promised_count(100, vague)
    (153, 196)
    """
    lowest = max(0.1, 1.0 - 1.3 * estimate.stderr / abs(estimate.value))  # few draws say little
    return cautious_count(count / lowest**2, estimate.dof)


def _outlook(draws: AbstractDraws, estimate: Estimate, asked: Precision, rtol: float) -> Outlook:
    enough = next_count(estimate, draws.drawn_part(), draws.count, asked, rtol)
    wanted = max(draws.next_stage(estimate, enough), draws.count + draws.least)
    stderr = rtol * abs(estimate.value) / t_quantile(0.5 + asked.confidence / 2, math.inf)
    return Outlook(enough, wanted, _left(draws, asked), stderr)


def _left(draws: AbstractDraws, asked: Precision) -> int:
    left = asked.passes_left(draws.passes, price=draws.price, stage=draws.price_of_stage)
    return left // draws.passes_a_draw


def _ended_by_budget(draws: AbstractDraws, asked: Precision) -> bool:
    passes = asked.max_passes - draws.passes
    return asked.purse is not None and _left(draws, asked) < draws.least <= passes
