"""Reports side by side: a measure against an outcome, layer by layer, along harmless moves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...ground.errors import SpiritlevelError
from ...results import Report
from .style import (
    FONT,
    GREY,
    LINES,
    log_if_positive,
    log_scale,
    new_figure,
    shown,
    style,
    tick_names,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def against(
    reports: Mapping[str, Report],
    outcome: Mapping[str, float],
    measure: str,
    *,
    errors: Mapping[str, float] | None = None,
    path: Sequence[str] = (),
    ax: Axes | None = None,
) -> Axes:
    """One point per network: a measure across, an outcome such as the generalization gap upwards.

    `errors` are standard errors of the outcome; `path` names networks to join by arrows, as the
    moments of one training run.
    """
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    for i, (name, report) in enumerate(reports.items()):
        x, y = _value(report, measure), outcome[name]
        if errors is not None:
            ax.errorbar(x, y, yerr=errors[name], color=GREY, linewidth=0.8, zorder=1)
        look = style(i)
        ax.plot(
            x, y, look["marker"], color=look["color"], markersize=7, label=shown(name), zorder=2
        )
    for start, end in itertools.pairwise(path):
        ax.annotate(
            "",
            (_value(reports[end], measure), outcome[end]),
            (_value(reports[start], measure), outcome[start]),
            arrowprops={"arrowstyle": "->", "color": GREY, "shrinkA": 6, "shrinkB": 6},
            zorder=1,
        )
    log_if_positive(ax, "x", [_value(report, measure) for report in reports.values()])
    lows = [y - (errors or {}).get(name, 0.0) for name, y in outcome.items()]
    log_if_positive(ax, "y", lows)
    ax.set_xlabel(shown(measure))
    tidy(ax)
    ax.margins(x=0.3, y=0.12)  # room for names
    return ax


def layers(reports: Mapping[str, Report], measure: str, *, ax: Axes | None = None) -> Axes:
    """One line per network: a measure of each layer, in the model's order."""
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    every: list[float] = []
    places: dict[str, int] = {}  # of all layers: networks may differ in some
    for i, (name, report) in enumerate(reports.items()):
        if measure not in report.layers:
            have = ", ".join(report.layers) or "none"
            raise SpiritlevelError(
                f"The report {name!r} has no layers of {measure!r}. Measures with layers: {have}."
            )
        values = [m.value for m in report.layers[measure].values()]
        every += values
        across = [places.setdefault(layer, len(places)) for layer in report.layers[measure]]
        ax.plot(across, values, label=shown(name), linewidth=1.5, **style(i))  # type: ignore[arg-type]
    log_if_positive(ax, "y", every)
    ax.set_ylabel(shown(measure))
    ax.margins(x=0.08)
    tidy(ax)
    tick_names(ax, [shown(layer) for layer in places], font=FONT - 1)
    return ax


def moves(
    factors: Sequence[float], curves: Mapping[str, Sequence[float]], *, ax: Axes | None = None
) -> Axes:
    """Measures along a family of networks that compute the same function, relative to factor 1."""
    ax = ax if ax is not None else new_figure(5, 4).add_subplot()
    start = min(range(len(factors)), key=lambda i: abs(math.log(factors[i])))
    for i, (name, values) in enumerate(curves.items()):
        relative = [value / values[start] for value in values]
        colour, dashes, width = LINES[i % len(LINES)]
        ax.plot(
            factors,
            relative,
            dashes,
            color=colour,
            linewidth=width,
            zorder=3 - width / 6,
            label=shown(name),
        )
    log_scale(ax, "x", decades=1)
    log_scale(ax, "y", decades=3)
    tidy(ax)
    return ax


def _value(report: Report, measure: str) -> float:
    return report[measure].value
