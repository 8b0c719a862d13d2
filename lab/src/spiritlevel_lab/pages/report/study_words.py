"""How the numbers of a study read in its sentences and tables."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.measures import get, names
from spiritlevel.pages.report.page import LINE
from spiritlevel.records.content import Cell

from ...population.outcome_names import TARGETS
from ...population.population import label
from ...statistics.tables import rounded


def short(value: float) -> str:
    """Four digits, with a minus sign.

    >>> short(-0.123456)
    '−0.1235'
    """
    return f"{value:.4g}".replace("-", "−")


def meaning(name: str) -> str:
    """What an outcome or measure is; "" of a number of the study's own."""
    if name in TARGETS:
        return TARGETS[name]
    return get(name).summary if name in set(names()) else ""


def title(name: str) -> str:
    """A measure or outcome with what it is, for an axis."""
    return f"{name}: {meaning(name)}" if meaning(name) else name


def upright(name: str) -> list[str]:
    """The title of a measure or outcome, in lines that fit along an upright axis."""
    return textwrap.wrap(title(name), LINE)


def machines(descriptions: Iterable[Mapping[str, Any]]) -> str:
    """Where the runs were run, each place once."""
    places: dict[str, None] = {}
    for each in descriptions:
        threads = each.get("threads", "?")
        plural = "thread" if threads == 1 else "threads"
        places[f"{each.get('device', 'unknown')}, {threads} {plural}"] = None
    return "; ".join(places)


def named(given: str | Mapping[str, Any]) -> str:
    """A model or data set of a study with its options."""
    if isinstance(given, str):
        return given
    options = ", ".join(f"{key} {value}" for key, value in given.items() if key != "name")
    return f"{given.get('name')} ({options})" if options else str(given.get("name"))


def setting(value: Any) -> Cell:
    """A setting's value for a table, where a number sorts as one."""
    return value if isinstance(value, int | float) else label(value)


def finite(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The column's numbers, without those that are missing or not finite."""
    values = (row.get(name) for row in rows)
    return [value for value in values if value is not None and math.isfinite(value)]


def quartiles(values: Sequence[float]) -> list[float | None]:
    """Smallest, quarter, median, three quarters, largest; linear between neighbours. None without.

    >>> quartiles([1.0, 2.0, 3.0, 4.0])
    [1.0, 1.75, 2.5, 3.25, 4.0]
    """
    if len(values) < 2:
        return [rounded(value) for value in values or (None,)] * 5
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return [rounded(value) for value in (min(values), low, middle, high, max(values))]
