"""Cards: the one place where a fact about a measure stands, and the decorator that makes them."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import torch

from ..engine.data_pass import Needs
from ..engine.plan import MeasuringPlan
from ..engine.workspace import Workspace
from ..ground import plugins
from ..ground.errors import SpiritlevelError, brief, suggestion
from ..records.measurements import Cost, Measurement, Status
from ..symmetries import SYMMETRIES
from .options import Option, declare, declared_options, recorded
from .other_names import known_here_as
from .requirements import Requirement

FoundBy = Literal["formula", "products", "draws", "search"]
Direction = Literal["smaller is flatter", "larger is flatter"]
NO_FLATNESS = "not a measure of flatness"
EVERY = frozenset(SYMMETRIES)  # the claim of a measure that depends on the function alone
OF_OUTPUTS = EVERY - {"logit_shift"}  # of one that sees outputs as they are before the softmax
ALL_BUT_MIXING = EVERY - {"unit_mix"}
# of one that counts every weight in its own size; some of them cannot see what rows have in common
OF_ROWS = ALL_BUT_MIXING - {"free_shift"}
OF_WEIGHTS = OF_ROWS - {"logit_shift", "batchnorm_fold"}
METHODS = {
    "formula": "exactly, or by probes with an error bar where the network requires it",
    "products": "by products with the Hessian, until converged",
    "draws": "by random draws, with an error bar",
    "search": "by searching for the worst case: the value is a lower bound",
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """A measure of the whole network, and of each layer where it has layers."""

    whole: Measurement
    layers: dict[str, Measurement] = dataclasses.field(default_factory=dict)

    def recording(self, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Measured:
        """The same measurements; their record holds these, and between them what is there."""

        def complete(m: Measurement) -> Measurement:
            return dataclasses.replace(m, settings={**settings, **m.settings, **options})

        return self._changed(complete)

    def covering(self, included: Sequence[str], left_out: Sequence[str]) -> Measured:
        """The same, with which weights are in the whole and which are not."""
        count = f"{len(included)} of {len(included) + len(left_out)}"
        settings = {**self.whole.settings, "weights": count, "weights_left_out": list(left_out)}
        text = self.whole.text
        if left_out:
            shown = ", ".join(map(repr, left_out[:3]))
            more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
            omission = f"{count} weights; left out, since they are not known to act as matrices: "
            text = "; ".join(part for part in (text.rstrip("."), omission + shown + more) if part)
        whole = dataclasses.replace(self.whole, settings=settings, text=text)
        return dataclasses.replace(self, whole=whole)

    def rounded(self, dtype: torch.dtype) -> Measured:
        """The same measurements as far as a model can give them that rounds to `dtype`."""
        eps = torch.finfo(dtype).eps

        def marked(m: Measurement) -> Measurement:
            if not m.exact:
                return m
            kind = str(dtype).removeprefix("torch.")
            text = f"the model itself rounds to {kind}, to about {eps:.0%} in every step"
            text = "; ".join(part for part in (m.text.rstrip("."), text) if part)
            error = eps * abs(m.value)
            ends = (m.value - 2 * error, m.value + 2 * error)
            return dataclasses.replace(m, exact=False, stderr=error, interval=ends, text=text)

        return self._changed(marked)

    def doubted(self, why: str) -> Measured:
        """The same measurements as values that were not found."""

        def marked(m: Measurement) -> Measurement:
            text = "; ".join(part for part in (m.text.rstrip("."), why) if part)
            return dataclasses.replace(m, exact=False, status=Status.NOT_CONVERGED, text=text)

        return self._changed(marked)

    def _changed(self, change: Callable[[Measurement], Measurement]) -> Measured:
        return Measured(change(self.whole), {k: change(m) for k, m in self.layers.items()})


MeasureFunction: TypeAlias = Callable[[Workspace], Measured]
FurtherCost: TypeAlias = Callable[[Workspace], Cost]
Made = TypeVar("Made")


def once(make: Callable[[Workspace], Made]) -> Callable[[Workspace], Made]:
    """Decorate what several measures of one call share: it is made once for each workspace."""

    @functools.wraps(make)
    def shared(workspace: Workspace) -> Made:
        return workspace.once(make, lambda: make(workspace))

    return shared


@dataclasses.dataclass(frozen=True)
class Card:
    """Everything that is claimed about a measure. The contract suite executes the claims."""

    name: str  # family.variant
    summary: str  # one line
    formula: str  # LaTeX
    paper: str  # where it comes from, with the equation
    invariant: frozenset[str]  # every other symmetry is claimed to change the value
    misleads: str  # when not to trust it
    direction: Direction | None  # None: networks are not ranked by it
    needs: Needs  # the shared work it builds on
    default: bool  # whether `measure(model, data)` includes it
    in_audit: bool  # whether `audit(model, data)` includes it although it is no default
    requires: tuple[Requirement, ...]  # each raises where it is not met
    options: tuple[str, ...]  # the names of those that it reads
    found_by: FoundBy
    cost_text: str  # where the cost is more than that of the shared pass
    further_cost: FurtherCost | None  # the same as a number, at most, for one sample
    shared_work: str  # its name, where measures do that further work once for all that name it
    function: MeasureFunction

    @property
    def family(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def direction_in_words(self) -> str:
        """Which of two values belongs to the flatter network."""
        return self.direction or NO_FLATNESS

    def measured(self, workspace: Workspace) -> Measured:
        """What the function gives, with the settings and options that reproduce it."""
        found = self.function(workspace)
        return found.recording(workspace.settings(), recorded(workspace.options, self.options))

    def refuse(self, workspace: Workspace) -> None:
        """Raise if this cannot be computed; the error says what is missing."""
        for requirement in self.requires:
            requirement(workspace, self.name)

    def cost(self, plan: MeasuringPlan, num_samples: int) -> Cost:
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
                "if C is large; plus products with the Hessian if the network is not certified)"
            )
        if self.needs.products:
            return "products with the Hessian, as many as it takes to converge"
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
    needs: Needs = Needs(),  # noqa: B008 - it is frozen
    default: bool = False,
    in_audit: bool = False,
    requires: tuple[Requirement, ...] = (),
    options: Sequence[Option | str] = (),
    found_by: FoundBy = "formula",
    cost: str = "",
    further_cost: FurtherCost | None = None,
    shared_work: str = "",
) -> Callable[[MeasureFunction], MeasureFunction]:
    """Register a function as a measure; the arguments become its card.

    `cost` says what it takes where that is more than the shared pass, and `further_cost` gives the
    most that one sample adds to that pass, so that it can be said before anything runs. Measures
    that give it one name in `shared_work` do it once together.

    `options` are those that the measure reads from `workspace.options`: its own, and by name those
    that another measure has brought. The record of a measurement holds them.

    The function takes a Workspace and gives a Measured. It is returned unchanged. Running the
    definition again, as in a notebook, replaces the card.
    """
    own = [option for option in options if isinstance(option, Option)]
    others = [option for option in options if not isinstance(option, Option)]
    _check_claims(name, invariant=invariant, requires=requires, options=others)
    if direction not in (directions := (*get_args(Direction), None)):
        raise SpiritlevelError(
            f"Measure {name!r} has the direction {direction!r}. Known: {directions}. Use None for "
            "what does not measure flatness."
        )

    def add(function: MeasureFunction) -> MeasureFunction:
        place = (function.__module__, function.__qualname__)  # of a definition that is run again
        other = _CARDS[name].function if name in _CARDS else None
        if other and (other is function or (other.__module__, other.__qualname__) != place):
            raise SpiritlevelError(
                f"Measure {name!r} is registered twice: by {other.__module__}.{other.__name__} and "
                f"{function.__module__}.{function.__name__}. Choose another name."
            )
        for option in own:
            declare(option, function.__module__)
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
            in_audit=in_audit,
            requires=requires,
            options=tuple(each.name if isinstance(each, Option) else each for each in options),
            found_by=found_by,
            cost_text=cost,
            further_cost=further_cost,
            shared_work=shared_work,
            function=function,
        )
        return function

    return add


def get(name: str) -> Card:
    """The card of a measure."""
    cards = _all_cards()
    try:
        return cards[name]
    except KeyError:
        raise SpiritlevelError(
            f"No measure is called {name!r}.{_hint(str(name), list(cards))} See `spiritlevel list`."
        ) from None


def _hint(name: str, known: list[str]) -> str:
    """What was probably meant, in all families: a name alone may belong to several of them.

    >>> _hint("kapa", ["head.kappa", "relative.kappa", "head.trace"])
    " Did you mean 'head.kappa' or 'relative.kappa'?"
    >>> _hint("EWC", [])
    ' Did you mean sl.diagonal?'
    """
    if elsewhere := known_here_as(name):
        # a measure in quotes, as it is passed; a call as it is written
        meant = (each if each.startswith("sl.") else repr(each) for each in elsewhere)
        return f" Did you mean {' or '.join(meant)}?"
    if "." in name:
        return suggestion(name, known, most=3)
    variants = {each.partition(".")[2] for each in known}
    close = difflib.get_close_matches(name, variants, n=1)
    same = [each for each in known if each.partition(".")[2] in close]
    return f" Did you mean {' or '.join(map(repr, sorted(same)))}?" if same else ""


def names(pattern: str = "*") -> list[str]:
    """Names that match a pattern, sorted; a pattern without wildcards must name a measure."""
    if not isinstance(pattern, str):
        raise SpiritlevelError(
            f"The name or pattern of measures must be a text. Got {brief(pattern)}. See "
            "`spiritlevel list`."
        )
    if not set(pattern) & set("*?["):
        return [get(pattern).name]
    cards = _all_cards()
    matching = sorted(fnmatch.filter(cards, pattern))
    if not matching:
        families = sorted({card.family for card in cards.values()})
        raise SpiritlevelError(
            f"No measure matches {pattern!r}. Families: {', '.join(families)}. "
            "See `spiritlevel list`."
        )
    return matching


def registered_cards() -> list[Card]:
    """All cards, in the order in which they were registered."""
    return list(_all_cards().values())


def _all_cards() -> dict[str, Card]:
    """The cards of this package, and those that installed packages add."""
    plugins.load("spiritlevel.measures")
    return _CARDS


def _check_claims(
    name: str,
    *,
    invariant: Iterable[str],
    requires: tuple[Requirement, ...],
    options: Iterable[str],
) -> None:
    for kind, claimed, known in (
        ("symmetries", set(invariant), set(SYMMETRIES)),
        ("options", set(options), set(declared_options())),
    ):
        if unknown := claimed - known:
            raise SpiritlevelError(
                f"Measure {name!r} claims unknown {kind} {sorted(unknown)}. Known: {sorted(known)}."
            )
    if wrong := [requirement for requirement in requires if not callable(requirement)]:
        raise SpiritlevelError(
            f"Each of the requirements of measure {name!r} must be a function of the workspace and "
            f"the measure's name. Got {brief(wrong[0])}. See spiritlevel.measures.requirements."
        )
