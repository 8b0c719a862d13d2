"""The measures that a call asks for: chosen by name, held against the network, and computed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence

from ..engine.data_pass import Needs
from ..engine.prices import Prices, prices_of
from ..engine.purse import OverBudget, Purse
from ..engine.workspace import Workspace
from ..ground.errors import NotApplicable, SpiritlevelError
from ..ground.need import or_none
from ..model.arguments import ArgumentCheck, are_texts
from ..records.measurements import Cost
from .registry import Card, Measured, get, names
from .requirements import head as requires_head
from .requirements import layer_weights, left_out_weights, measured_weights

MEASURES = ArgumentCheck(
    or_none(are_texts), "a text, a list of texts, or None"
)  # the verbs' argument


@dataclasses.dataclass(frozen=True)
class Asked:
    """The cards of a call, before its network is looked at."""

    cards: list[Card]
    named: set[str]  # those that were asked for by their full name
    matched: set[str]  # those that a name or a pattern of the user matched

    @classmethod
    def read(cls, measures: str | Sequence[str] | None, also: Iterable[str] = ()) -> Asked:
        """From names and patterns, None being the defaults; `also` come where they apply."""
        if measures is None:
            cards, patterns = [card for card in map(get, names()) if card.default], list[str]()
        else:
            patterns = [measures] if isinstance(measures, str) else list(measures)
            if not patterns:
                raise SpiritlevelError(
                    "The 'measures' argument must name at least one measure. Got an empty list. "
                    "Leave it out for a sensible choice; see `spiritlevel list`."
                )
            matching = [name for pattern in patterns for name in names(pattern)]
            cards = [get(name) for name in dict.fromkeys(matching)]
        asked_for = {card.name for card in cards}
        cards += [get(name) for name in also if name not in asked_for]
        # those of the default set, and those of `also`, come and go with the network
        return cls(cards, set(patterns), set() if measures is None else asked_for)

    def without(self, names: Collection[str]) -> Asked:
        """The same but for some of them."""
        kept = [card for card in self.cards if card.name not in names]
        return dataclasses.replace(self, cards=kept)

    def of(self, workspace: Workspace) -> Applied:
        """Those that this network has; one that was named and does not apply is an error."""
        workspace.want(_needs(self.cards))
        with workspace.surface.preserved():
            if workspace.head_name is not None and any(
                requires_head in card.requires for card in self.cards
            ):
                _ = workspace.head  # a layer that was named is refused, not left out
            refusals = {c.name: error for c in self.cards if (error := _refusal(c, workspace))}
        chosen = [card for card in self.cards if card.name not in refusals]
        if wrong := [name for name in refusals if name in self.named or not chosen]:
            raise refusals[wrong[0]]
        workspace.want(_needs(chosen))
        workspace.asked = frozenset(card.name for card in chosen)
        reasons = {n: str(error) for n, error in refusals.items()}
        return Applied(workspace, self, chosen, reasons)


@dataclasses.dataclass(frozen=True)
class Applied:
    """The measures that were asked for and apply to the network, and where they are computed."""

    workspace: Workspace
    asked: Asked
    cards: list[Card]
    left_out: dict[str, str]  # why the others are, by name
    prices: Prices | None = None  # what they cost, where that was asked for

    def priced(self, budget: float = math.inf) -> Applied:
        """Those that a budget in forward-backwards allows, with what they cost.

        Their estimates then keep to the budget, as far as it is finite.
        """
        workspace = self.workspace
        plan = self._prices().within(budget)
        if plan.shared > budget:  # the pass alone is too much: only what needs none is left
            swept = [card.name for card in self.cards if card.needs.sweep]
            plan = dataclasses.replace(plan, left_out=dict.fromkeys(swept, plan.shared))
        reasons = {
            n: OverBudget(f"measure {n!r}", price, budget) for n, price in plan.left_out.items()
        }
        kept = [card for card in self.cards if card.name not in reasons]
        if not kept:
            raise next(iter(reasons.values()))
        left_out = self.left_out | {name: str(error) for name, error in reasons.items()}
        chosen = Applied(workspace, self.asked, kept, left_out)
        if reasons:
            workspace.want(_needs(kept))
            workspace.asked = frozenset(card.name for card in kept)
            plan = dataclasses.replace(chosen._prices().within(budget), left_out=plan.left_out)
        if math.isfinite(budget):
            surface, count = workspace.surface, max(workspace.num_samples, 1)
            processes = surface.processes
            purse = Purse(
                budget, lambda: processes.total_cost(surface.cost).forward_backwards / count
            )
            workspace.precision = dataclasses.replace(workspace.precision, purse=purse)
        return dataclasses.replace(chosen, prices=plan)

    def _sharing(self, place: int) -> int:
        """Among how many parts what is left of the budget is divided at one of them.

        Those that have nothing to pay for take what the others leave.
        """
        assert self.prices is not None
        ahead = self.prices.parts[place:]
        return sum(part.likely > 0.0 for part in ahead) or len(ahead)

    def _prices(self) -> Prices:
        needs = {card.name: card.needs for card in self.cards}
        return prices_of(self.workspace, needs, self.further)

    @property
    def further(self) -> dict[str, Cost]:
        """What some of them take at most beyond the shared pass, for one sample."""
        return {c.name: c.further_cost(self.workspace) for c in self.cards if c.further_cost}

    def measured(self) -> tuple[dict[str, Measured], dict[str, str]]:
        """Their values, and why some of those that only a pattern matched are left out."""
        workspace, measured, refused = self.workspace, {}, {}
        workspace.start()
        purse, families = workspace.precision.purse, dict[str, int]()
        if purse is not None and self.prices is not None:  # the most useful first
            parts = [part.measures for part in self.prices.parts]
            families = {name: i for i, names in enumerate(parts) for name in names}
        for card in sorted(self.cards, key=lambda card: families.get(card.name, -1)):
            try:
                if purse is not None and card.name in families:
                    purse.divide(self._sharing(families[card.name]))
                with workspace.surface.processes.together():
                    measured[card.name] = _completed(card, card.measured(workspace), workspace)
            except NotApplicable as error:
                if card.name in self.asked.named or len(self.cards) == 1:
                    raise
                refused[card.name] = str(error)
        if lost := workspace.surface.lost.text():
            derived = {card.name for card in self.cards if card.needs.derivatives}
            measured |= {name: m.doubted(lost) for name, m in measured.items() if name in derived}
        measured = {card.name: measured[card.name] for card in self.cards if card.name in measured}
        workspace.cache.clear()  # it refers to the workspace: the cycle would keep both in memory
        return measured, refused


def _needs(cards: Iterable[Card]) -> Needs:
    total = Needs()
    for card in cards:
        total = total | card.needs
    return total


def _refusal(card: Card, workspace: Workspace) -> SpiritlevelError | None:
    try:
        with workspace.surface.processes.together():  # all leave out the same measures
            card.refuse(workspace)
    except SpiritlevelError as error:
        return error
    return None


def _completed(card: Card, measured: Measured, workspace: Workspace) -> Measured:
    """The measurements, with the weights that are in them.

    What a model rounds to half precision itself is not exact, however it was computed.
    """
    for weights_of in (measured_weights, layer_weights):
        if weights_of not in card.requires:
            continue
        weights = list(weights_of(workspace, card.name).values())
        measured = measured.covering(weights, left_out_weights(workspace, weights))
    rounded_to = workspace.surface.numbers.rounded_to
    return measured if rounded_to is None else measured.rounded(rounded_to)
