"""What changes of the weights do to the loss, as a record: shown, applied and tried."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...reading import Plain, Saved
from ...records import Cost, aligned

Choice = TypeVar("Choice", bound="AbstractChoice")
Record = TypeVar("Record", bound="AbstractChanges[Any]")


class AbstractChoice(Plain, abc.ABC):
    """Changes that are made together, and what they do to the loss: a plan of bits, say."""

    measured_rise: float | None  # of the loss, on the same data
    measured_error: float | None  # the share of wrong predictions

    @abc.abstractmethod
    def text(self) -> str:
        """One line about it."""


def choice_text(what: str, *rises: tuple[str, float | None, float | None]) -> str:
    """What was chosen, and each rise of the loss: how it is called, its value if known, its error.

    >>> choice_text("3 units", ("predicted rise", 0.1234, 0.05), ("alone", None, None))
    '3 units; predicted rise 0.123 ± 0.05'
    """
    parts = [what]
    for name, value, stderr in rises:
        if value is not None:
            parts.append(f"{name} {value:.3g}" + ("" if stderr is None else f" ± {stderr:.1g}"))
    return "; ".join(parts)


class WeightTable(NamedTuple):
    """What is told about every weight, once for all who show it."""

    heading: str
    titles: list[str]
    rows: dict[str, list[str]]  # by weight
    note: str = ""  # below it


class AbstractChanges(Saved, abc.ABC, Generic[Choice]):
    """What is predicted for the changes of each weight, and what was chosen among them."""

    left_out: dict[str, str]  # weights that are not changed, and why
    loss: float  # of the network as it is
    error: float | None  # its share of wrong predictions, for cross-entropy
    cost: Cost
    settings: dict[str, Any]
    chosen: Choice | None

    @abc.abstractmethod
    def table(self, *, with_chosen: bool = False) -> WeightTable:
        """All changes, by weight; `with_chosen` adds a column of what was chosen."""

    @abc.abstractmethod
    def changed(self, name: str, weight: Tensor, choice: Choice) -> Tensor:
        """A weight after what was chosen for it."""

    def __str__(self) -> str:
        heading, titles, rows, note = self.table()
        lines = [aligned([(heading, *titles), *((name, *row) for name, row in rows.items())])]
        lines += [] if self.chosen is None else [self.chosen.text()]
        lines += [note] if note else []
        count = int(self.settings["num_samples"])
        return "\n".join([*lines, f"{count} samples, {self.cost.passes(count)} over the data"])

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
