"""`WeightChanges`, a network whose weights are changed, and the records of what that does to it.

For rounding, deleting and all others that is the same: which weights can be changed where they act,
one pass over the data for slope and curvature along each change, the best choices by that, and the
loss after them. A record of changes is shown, applied and tried in one way, too.
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from ..engine.data_pass import Needs
from ..engine.recorded_runs import reasons_against
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..model.losses import CrossEntropy
from ..model.weight_matrices import WeightMatrix
from ..records.content import ERROR, Figure, Notes, Part, Series, Table, Text, Uncertain, number
from ..records.measurements import Cost
from ..records.notebooks import Shown
from ..records.reading import Plain, Saved

INCREASE = 3  # digits of an increase of the loss
Choice = TypeVar("Choice", bound="AbstractChoice")
Record = TypeVar("Record", bound="AbstractChanges[Any]")


class WeightChanges:
    """The weights of a network that can be changed, and the loss after their changes."""

    def __init__(
        self,
        workspace: Workspace,
        wanted: str,
        reason_against: Callable[[WeightMatrix], str | None] = lambda matrix: None,
    ) -> None:
        """`wanted` completes "weight matrices whose"; `reason_against` leaves further ones out."""
        self.workspace = workspace
        workspace.want(Needs(sweep=True))
        matrices = {matrix.name: matrix for matrix in workspace.surface.matrices.values()}
        self.left_out = reasons_against(workspace, matrices)
        for name, matrix in matrices.items():
            if (reason := reason_against(matrix)) is not None:
                self.left_out.setdefault(name, reason)
        self.matrices = {n: m for n, m in matrices.items() if n not in self.left_out}
        if not self.matrices:
            first = next(iter(self.left_out.items()), ("", "it has no weight matrix"))
            raise SpiritlevelError(
                f"The model must have weight matrices whose {wanted}. Got none: {first[0]!r}: "
                f"{first[1]}."
            )
        self.weights = {name: m.parameter.detach() for name, m in self.matrices.items()}

    def facts(self, **settings: Any) -> dict[str, Any]:
        """What every record of changes has, by its fields."""
        loss, error = self._losses({})
        return {
            "left_out": self.left_out,
            "loss": loss,
            "error": error,
            "cost": self.workspace.cost,
            "settings": self.workspace.settings() | settings,
        }

    def finished(
        self, found: Record, *, check: bool, same: Callable[[Any], Hashable] = id
    ) -> Record:
        """The record with all costs; with `check` also with the loss after every choice in it.

        Choices for which `same` is equal are tried once.
        """
        losses: dict[Hashable, tuple[float, float | None]] = {}

        def tried(choice: Any) -> Any:
            if same(choice) not in losses:  # one at a time: each is a copy of all weights
                weights = self.weights.items()
                losses[same(choice)] = self._losses(
                    {name: found.changed(name, weight, choice) for name, weight in weights}
                )
            loss, error = losses[same(choice)]
            rise = loss - found.loss
            return dataclasses.replace(choice, measured_rise=rise, measured_error=error)

        found = found.with_each(tried) if check else found
        return dataclasses.replace(found, cost=self.workspace.cost)  # type: ignore[type-var]

    def _losses(self, point: dict[str, Tensor]) -> tuple[float, float | None]:
        """Loss and share of wrong predictions with these weights; the latter of classes only."""
        perturbed = self.workspace.perturbed
        (loss,) = perturbed.losses([point])
        if not isinstance(self.workspace.surface.loss, CrossEntropy):
            return loss, None
        return loss, perturbed.errors([point])[0]


class AbstractChoice(Plain, abc.ABC):
    """Changes that are made together, and what they do to the loss: a plan of bits, say."""

    rise: float | None  # predicted increase of the loss
    measured_rise: float | None  # of the loss, on the same data
    measured_error: float | None  # the share of wrong predictions

    @abc.abstractmethod
    def text(self) -> str:
        """One line about it."""

    @property
    def increase(self) -> float:
        """Of the loss: measured, or predicted where that was not asked for."""
        known = (self.measured_rise, self.rise, math.nan)
        return next(each for each in known if each is not None)


def increases(
    x_label: str, title: str, lines: Mapping[str, Iterable[tuple[float, float | None]]]
) -> Figure:
    """Curves of the loss increase through the points where it is known."""
    known = {name: [(x, y) for x, y in line if y is not None] for name, line in lines.items()}
    series = [
        Series(name, [x for x, _ in points], [y for _, y in points])
        for name, points in known.items()
        if points
    ]
    return Figure(x_label, "loss increase", series, id="increases", title=title)


def choice_text(what: str, *rises: tuple[str, float | None, float | None]) -> str:
    """What was chosen, and each loss increase: how it is called, its value if known, its error.

    >>> choice_text("3 units", ("predicted increase", 0.1234, 0.05), ("alone", None, None))
    '3 units; predicted increase 0.123 ± 0.05'
    """
    known = [
        (name, Uncertain(value, error), error) for name, value, error in rises if value is not None
    ]
    said = [
        f"{name} {number(value, INCREASE)}" + (f" ± {number(error, ERROR)}" if error else "")
        for name, value, error in known
    ]
    return "; ".join([what, *said])


class AbstractChanges(Shown, Saved, Generic[Choice]):
    """What is predicted for the changes of each weight, and what was chosen among them."""

    STAYS: ClassVar[str]  # of a weight in `left_out`

    left_out: dict[str, str]  # weights that are not changed, and why
    loss: float  # of the network as it is
    error: float | None  # its share of wrong predictions, for cross-entropy
    cost: Cost
    settings: dict[str, Any]
    chosen: Choice | None

    @abc.abstractmethod
    def changed(self, name: str, weight: Tensor, choice: Choice) -> Tensor:
        """A weight after what was chosen for it."""

    def told(
        self,
        doing: str,
        outcomes: Mapping[str, Choice],
        tables: Iterable[Table],
        curves: Figure,
        *lines: str,
    ) -> list[Part]:
        """What was chosen, or the outcomes of `doing` it; curves, tables, work, further lines."""
        count = int(self.settings["num_samples"])
        stay = [f"{self.STAYS}: {name}: {why}" for name, why in self.left_out.items()]
        notes = Notes(self.cost.passes(count), count, [*lines, *stay])
        shown = [f"{number(o.increase, INCREASE)} {how}" for how, o in outcomes.items()]
        answer = f"{doing} increases the loss by {', '.join(shown)}."
        if self.chosen is not None or not shown:
            answer = f"Chosen: {'nothing' if self.chosen is None else self.chosen.text()}"
        pictures = [curves] if curves.series else []
        return [Text([answer]), *pictures, *(table for table in tables if table.rows), notes]

    def with_each(self: Record, tried: Callable[[Any], Any]) -> Record:
        """The same with every choice in it as `tried` returns it."""

        def each(part: Any) -> Any:
            if isinstance(part, AbstractChoice):
                return tried(part)
            if isinstance(part, list):
                return [each(one) for one in part]
            return {name: each(one) for name, one in part.items()} if type(part) is dict else part

        parts = {name: each(part) for name, part in vars(self).items()}
        return dataclasses.replace(self, **parts)  # type: ignore[type-var]

    def changed_copy(
        self, model: nn.Module, choice: Choice, looks: Mapping[str, str], look: Callable[..., str]
    ) -> nn.Module:
        """A copy of the model after what was chosen; `look` tells what `looks` knows of weights."""
        copied = copy.deepcopy(model)
        parameters = dict(copied.named_parameters())
        for name, expected in looks.items():
            if name not in parameters or look(parameters[name]) != expected:
                raise SpiritlevelError(
                    "The 'model' argument of apply must be the network that was measured. It has "
                    f"no weight {name!r} {expected}."
                )
            with torch.no_grad():
                parameters[name].copy_(self.changed(name, parameters[name].detach(), choice))
        return copied
