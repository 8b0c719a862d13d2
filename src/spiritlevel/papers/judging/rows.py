"""Rows of runs, taken apart by what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiment import Row


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of one column; None where a run lacks it."""
    return [row.get(name) for row in rows]


def grouped(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Rows by the value of one column, values in order.

    >>> grouped([{"lr": 2}, {"lr": 1}, {"lr": 2}], "lr")
    {1: [{'lr': 1}], 2: [{'lr': 2}, {'lr': 2}]}
    """
    values = sorted({row[name] for row in rows})
    return {value: [row for row in rows if row[name] == value] for value in values}
