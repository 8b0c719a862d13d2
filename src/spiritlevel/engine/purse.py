"""What a call may still spend, in forward-backwards over the data, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable

from ..ground.errors import NotApplicable

FORWARD_BACKWARDS = "forward-backwards"
PRODUCT = 4 / 3  # a product with the Hessian; `Cost.forward_backwards` has all prices
PASS = 1.0  # a forward and a backward, which the probes of one pass share


class OverBudget(NotApplicable):
    """A measure costs more than what is left of the budget."""

    def __init__(self, what: str, price: float, budget: float) -> None:
        """`price` and `budget` are in forward-backwards over the data."""
        self.price, self.budget = price, budget
        super().__init__(
            f"The {what} would cost about {price:.2g} {FORWARD_BACKWARDS}, more than is left of "
            f"the budget of {budget:g}. Ask for it by name, or raise the budget."
        )


class Purse:
    """A budget, and the part of it that the estimate at hand may use up."""

    def __init__(self, budget: float, spent: Callable[[], float]) -> None:
        """`spent` says how much was spent so far."""
        self.budget, self._spent = budget, spent
        self._limit = budget

    @property
    def left(self) -> float:
        """What the estimate at hand may still use up."""
        return self._limit - self._spent()

    def divide(self, parts: int) -> None:
        """Give the estimates that follow equal parts of what is left; the first one comes now."""
        spent = self._spent()
        self._limit = spent + (self.budget - spent) / max(parts, 1)

    def claim(self, price: float, what: str) -> None:
        """Let the estimate at hand use up at least so much; raise OverBudget if it is not there."""
        spent = self._spent()
        if spent + price > self.budget:
            raise OverBudget(what, price, self.budget)
        self._limit = max(self._limit, spent + price)
