"""The arguments that a study gives to a task, read into a dataclass of the task."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from spiritlevel.ground.errors import SpiritlevelError, brief

from .keys import check_keys
from .run import RunSettings

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class NoArguments:
    """For a task whose study says everything in its other sections."""


def read_task(settings: RunSettings, arguments: type[T]) -> T:
    """The arguments of the study's `task`; each must be of the same type as its default."""
    given = settings.task.arguments if settings.task is not None else {}
    fields = {field.name: field.default for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]
    check_keys("task", given, fields)
    return arguments(**{key: _read(key, value, fields[key]) for key, value in given.items()})


def _read(key: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, kind):
        needs = {int: "a whole number", float: "a number", str: "a text"}
        raise SpiritlevelError(
            f"The study's task.{key} must be {needs[kind]}. Got {brief(value)}. Usual: {default!r}."
        )
    return value
