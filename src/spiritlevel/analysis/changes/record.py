"""What changes of the weights do to the loss, as a record: shown, applied, written and read."""

from __future__ import annotations

import abc
import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...reading import read_as, read_fields, read_settings
from ...records import Cost, aligned, read_json, to_json_float

Choice = TypeVar("Choice", bound="AbstractChoice")
Record = TypeVar("Record", bound="AbstractChanges[Any]")


class AbstractChoice(abc.ABC):
    """Changes that are made together, and what they do to the loss: a plan of bits, say."""

    measured_rise: float | None  # of the loss, on the same data
    measured_error: float | None  # the share of wrong predictions

    @abc.abstractmethod
    def text(self) -> str:
        """One line about it."""

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        return dict(_plain(self))


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


class Table(NamedTuple):
    """What is told about every weight, once for all who show it."""

    heading: str
    titles: list[str]
    rows: dict[str, list[str]]  # by weight
    note: str = ""  # below it


class AbstractChanges(abc.ABC, Generic[Choice]):
    """What is predicted for the changes of each weight, and what was chosen among them."""

    FORMAT: ClassVar[str]  # of its files
    CALLED: ClassVar[str]  # in errors about them
    left_out: dict[str, str]  # weights that are not changed, and why
    loss: float  # of the network as it is
    error: float | None  # its share of wrong predictions, for cross-entropy
    cost: Cost
    settings: dict[str, Any]
    chosen: Choice | None

    @abc.abstractmethod
    def table(self, *, with_chosen: bool = False) -> Table:
        """All changes, by weight; `with_chosen` adds a column of what was chosen."""

    @abc.abstractmethod
    def changed(self, name: str, weight: Tensor, choice: Choice) -> Tensor:
        """A weight after what was chosen for it."""

    @classmethod
    @abc.abstractmethod
    def read_parts(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that are not read by their types."""

    @abc.abstractmethod
    def check_parts(self) -> None:
        """Refuse parts that do not go together: they were edited, or damaged."""

    def __str__(self) -> str:
        heading, titles, rows, note = self.table()
        lines = [aligned([(heading, *titles), *((name, *row) for name, row in rows.items())])]
        lines += [] if self.chosen is None else [self.chosen.text()]
        lines += [note] if note else []
        count = int(self.settings["num_samples"])
        return "\n".join([*lines, f"{count} samples, {self.cost.passes(count)} over the data"])

    def to_dict(self) -> dict[str, Any]:
        """Everything but what is known of pairs of changes, in plain types."""
        return {"format": self.FORMAT} | _plain(self)

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls: type[Record], data: Mapping[str, Any]) -> Record:
        """The inverse of `to_dict`."""
        given = dict(read_as(Mapping[str, Any], data, cls.CALLED))
        given.pop("format", None)
        read_settings(given["settings"], f"{cls.CALLED}'s settings")
        found = read_fields(cls, given, cls.CALLED, **cls.read_parts(given))
        found.check_parts()
        return found

    @classmethod
    def from_json(cls: type[Record], text: str) -> Record:
        """Read what `to_json` wrote; choices made from it know no terms between changes."""
        return read_json(text, cls.__name__, cls.FORMAT, cls.from_dict)

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


def _plain(value: Any) -> Any:
    """Records as mappings, tensors as lists; fields that a record does not show are left out."""
    if isinstance(value, float):
        return to_json_float(value)
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if not dataclasses.is_dataclass(value):
        return value
    fields = [field for field in dataclasses.fields(value) if field.repr]
    written = {field.name: field.metadata.get("written", _plain) for field in fields}
    return {name: write(getattr(value, name)) for name, write in written.items()}
