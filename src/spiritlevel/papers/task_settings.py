"""What every task asks of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import SpiritlevelError
from ..study.settings.keys import check_keys
from ..study.settings.run import RunSettings


def options_of(settings: RunSettings, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the study's `task`, each of the kind of its default."""
    given = {key: value for key, value in (settings.task or {}).items() if key != "name"}
    check_keys("task", given, defaults)
    return {key: _read(key, given.get(key, value), value) for key, value in defaults.items()}


def _read(key: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, kind):
        words = {int: "a whole number", float: "a number", str: "a word"}
        raise SpiritlevelError(
            f"The study's task.{key} must be {words[kind]}. Got {value!r}. Usual: {default!r}."
        )
    return value
