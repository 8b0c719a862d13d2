"""Cards: the one place where a fact about a measure stands."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Callable, Iterable

from .._core import Cost, Measurement, SpiritlevelError
from ..estimators.exact import Needs
from ..estimators.plan import Plan
from ..estimators.work import Work
from ..losses import CrossEntropy, Loss
from ..symmetries import SYMMETRIES


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measure of the whole network, and of each layer where it has layers."""

    whole: Measurement
    layers: dict[str, Measurement] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Card:
    """Everything that is claimed about a measure. The contract suite executes the claims."""

    name: str  # family.variant
    summary: str  # one line, in words
    formula: str  # LaTeX
    paper: str  # where it comes from, with the equation
    invariant: frozenset[str]  # every other symmetry is claimed to move the value
    misleads: str  # when not to trust it
    needs: Needs  # the shared work it rests on
    default: bool  # whether `measure(model, loader)` includes it
    function: Callable[[Work], Measured]

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    def cost(self, plan: Plan, num_samples: int) -> Cost:
        """The planned cost; a measurement reports the counted one."""
        return plan.cost(num_samples, sweep=self.needs.sweep)

    def cost_in_words(self) -> str:
        """The planned cost for C outputs, as passes over the data."""
        if self.needs.sweep:
            return (
                "1 forward, C−1 backwards (C for losses other than cross-entropy; a few probes "
                "where C is large; Hessian products on top where the network is not certified)"
            )
        if self.needs.products:
            return "Hessian products (as many as it takes to converge)"
        return "1 forward"


_CARDS: dict[str, Card] = {}


def require_softmax(loss: Loss, name: str) -> None:
    """Refuse a measure of the softmax for a loss that has none."""
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy'. Got {loss.name!r}. "
            "Leave it out of 'measures'."
        )


def measure(
    *,
    name: str,
    summary: str,
    formula: str,
    paper: str,
    invariant: Iterable[str],
    misleads: str,
    needs: Needs,
    default: bool = True,
) -> Callable[[Callable[[Work], Measured]], Callable[[Work], Measured]]:
    """Register a plain function as a measure. The function is returned unchanged."""
    if unknown := set(invariant) - set(SYMMETRIES):
        raise SpiritlevelError(
            f"Measure {name!r} claims unknown symmetries {sorted(unknown)}. "
            f"Known: {sorted(SYMMETRIES)}."
        )

    def add(function: Callable[[Work], Measured]) -> Callable[[Work], Measured]:
        if name in _CARDS:
            other = _CARDS[name].function
            raise SpiritlevelError(
                f"Measure {name!r} is registered twice: by {other.__module__}.{other.__name__} and "
                f"{function.__module__}.{function.__name__}. Choose another name."
            )
        _CARDS[name] = Card(
            name, summary, formula, paper, frozenset(invariant), misleads, needs, default, function
        )
        return function

    return add


def get(name: str) -> Card:
    """The card of a measure."""
    try:
        return _CARDS[name]
    except KeyError:
        close = difflib.get_close_matches(name, _CARDS, n=3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise SpiritlevelError(
            f"No measure is called {name!r}.{hint} See `spiritlevel list`."
        ) from None


def names(pattern: str = "*") -> list[str]:
    """Names that match a pattern, sorted; a pattern without wildcards must name a measure."""
    if not set(pattern) & set("*?["):
        return [get(pattern).name]
    found = sorted(fnmatch.filter(_CARDS, pattern))
    if not found:
        raise SpiritlevelError(
            f"No measure matches {pattern!r}. Families: "
            f"{', '.join(sorted({card.family for card in _CARDS.values()}))}. "
            "See `spiritlevel list`."
        )
    return found
