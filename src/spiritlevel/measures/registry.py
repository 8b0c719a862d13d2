"""Cards: the one place where a fact about a measure stands."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from ..engine.data_pass import Needs
from ..engine.options import TEXTS
from ..engine.plan import Plan
from ..engine.workspace import Workspace
from ..errors import SpiritlevelError, suggestion
from ..results import Cost, Measurement
from ..symmetries import SYMMETRIES
from .requirements import Requirement

FoundBy = Literal["formula", "products", "draws", "search"]
Direction = Literal["smaller is flatter", "larger is flatter"]
NO_FLATNESS = "not a measure of flatness"
EVERY = frozenset(SYMMETRIES)  # the claim of a measure that depends on the function alone
METHODS = {
    "formula": "exactly, or by probes with an error bar where the network asks for it",
    "products": "by Hessian products until it has converged",
    "draws": "by random draws, with an error bar",
    "search": "by a search for the worst case: the value is a lower bound of it",
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measure of the whole network, and of each layer where it has layers."""

    whole: Measurement
    layers: dict[str, Measurement] = dataclasses.field(default_factory=dict)

    def recording(self, settings: Mapping[str, Any]) -> Measured:
        """The same with more settings in the record."""

        def noted(m: Measurement) -> Measurement:
            return dataclasses.replace(m, settings={**m.settings, **settings})

        return Measured(noted(self.whole), {layer: noted(m) for layer, m in self.layers.items()})


@dataclasses.dataclass(frozen=True)
class Card:
    """Everything that is claimed about a measure. The contract suite executes the claims."""

    name: str  # family.variant
    summary: str  # one line, in words
    formula: str  # LaTeX
    paper: str  # where it comes from, with the equation
    invariant: frozenset[str]  # every other symmetry is claimed to move the value
    misleads: str  # when not to trust it
    direction: Direction | None  # None: networks are not ranked by it
    needs: Needs  # the shared work it rests on
    default: bool  # whether `measure(model, loader)` includes it
    requires: tuple[Requirement, ...]  # each raises where it is not met
    options: tuple[str, ...]  # fields of Options that it reads
    found_by: FoundBy
    cost_text: str  # where it is more than the shared pass
    function: Callable[[Workspace], Measured]

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def direction_in_words(self) -> str:
        """Which of two values speaks of the flatter network."""
        return self.direction or NO_FLATNESS

    def refuse(self, workspace: Workspace) -> None:
        """Raise where this cannot be computed, with what is missing."""
        for requirement in self.requires:
            requirement(workspace, self.name)

    def cost(self, plan: Plan, num_samples: int) -> Cost:
        """The planned cost; a measurement reports the counted one."""
        needs = self.needs
        return plan.cost(num_samples, sweep=needs.sweep, spreads=needs.standardized)

    def cost_in_words(self) -> str:
        """The planned cost for C outputs, as passes over the data."""
        if self.cost_text:
            return self.cost_text
        if self.needs.sweep:
            return (
                "1 forward, C−1 backwards (C for losses other than cross-entropy; a few probes "
                "where C is large; Hessian products on top where the network is not certified)"
            )
        if self.needs.products:
            return "Hessian products (as many as it takes to converge)"
        return "1 forward"


_CARDS: dict[str, Card] = {}


def measure(
    *,
    name: str,
    summary: str,
    formula: str,
    paper: str,
    invariant: Iterable[str],
    misleads: str,
    direction: Direction | None = "smaller is flatter",
    needs: Needs,
    default: bool = True,
    requires: tuple[Requirement, ...] = (),
    options: tuple[str, ...] = (),
    found_by: FoundBy = "formula",
    cost: str = "",
) -> Callable[[Callable[[Workspace], Measured]], Callable[[Workspace], Measured]]:
    """Register a plain function as a measure. The function is returned unchanged."""
    for kind, claimed, known in (
        ("symmetries", set(invariant), set(SYMMETRIES)),
        ("options", set(options), set(TEXTS)),
    ):
        if unknown := claimed - known:
            raise SpiritlevelError(
                f"Measure {name!r} claims unknown {kind} {sorted(unknown)}. Known: {sorted(known)}."
            )

    if direction not in (known_directions := (*get_args(Direction), None)):
        raise SpiritlevelError(
            f"Measure {name!r} has the direction {direction!r}. Known: {known_directions}. None "
            "is for what is no measure of flatness."
        )

    def add(function: Callable[[Workspace], Measured]) -> Callable[[Workspace], Measured]:
        if name in _CARDS:
            other = _CARDS[name].function
            raise SpiritlevelError(
                f"Measure {name!r} is registered twice: by {other.__module__}.{other.__name__} and "
                f"{function.__module__}.{function.__name__}. Choose another name."
            )
        _CARDS[name] = Card(
            name=name,
            summary=summary,
            formula=formula,
            paper=paper,
            invariant=frozenset(invariant),
            misleads=misleads,
            direction=direction,
            needs=needs,
            default=default,
            requires=requires,
            options=options,
            found_by=found_by,
            cost_text=cost,
            function=function,
        )
        return function

    return add


def get(name: str) -> Card:
    """The card of a measure."""
    try:
        return _CARDS[name]
    except KeyError:
        hint = suggestion(name, _CARDS, most=3)
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
