"""How the numbers of a study read in its sentences and tables."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from ...content import Coefficient
from ...measures import get, names
from ...study.population import TARGETS
from ...study.statistics import Correlation

SMALLEST_P = 1e-12  # beyond, the assumptions behind a p are surely further off than the p
LINE = 44  # characters of a title along an upright axis


def interval(correlation: Correlation) -> str | None:
    """Both ends in brackets; None where there is no interval."""
    return Coefficient(correlation.value, correlation.low, correlation.high).interval or None


def coefficient(correlation: Correlation) -> str:
    """The value with its interval."""
    if math.isnan(correlation.value):
        return f"not defined: {correlation.reason}"
    return f"{correlation.value:+.2f} ".replace("-", "−") + (
        interval(correlation) or "without interval"
    )


def short(value: float) -> str:
    """Four digits, with a minus sign.

    >>> short(-0.123456)
    '−0.1235'
    """
    return f"{value:.4g}".replace("-", "−")


def chance(p: float) -> str:
    """A p-value as text.

    >>> chance(0.0312), chance(0.0)
    ('p = 0.031', 'p < 1e-12')
    """
    return f"p < {SMALLEST_P:g}" if p < SMALLEST_P else f"p = {p:.2g}"


def meaning(name: str) -> str:
    """What an outcome or measure is; "" of a number of the study's own."""
    if name in TARGETS:
        return TARGETS[name]
    return get(name).summary if name in set(names()) else ""


def title(name: str) -> str:
    """A measure or outcome with what it is, for an axis."""
    return f"{name}: {meaning(name)}" if meaning(name) else name


def upright(name: str) -> list[str]:
    """The same in lines that fit along an upright axis."""
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
