"""Deleted units: the rise of the loss against the share of the weights that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...results import Pruning
from .style import (
    COLOURS,
    FONT,
    MARKERS,
    new_figure,
    shown,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "joint": "by curvature, with terms between units",
    "curvature": "by curvature",
    "magnitude": "by magnitude",
    "random": "at random",
}


def pruning(found: Pruning) -> Figure:
    """Two panels: measured and predicted rises by share, and ½ρ(j) of every unit by weight."""
    figure = new_figure(8.2, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    share_and_rise(found, ax=left)
    units(found, ax=right)
    return figure


def share_and_rise(found: Pruning, *, ax: Axes | None = None) -> Axes:
    """The rise of the loss against the share of the weights that is deleted, by rule."""
    if ax is None:
        ax = new_figure(4.4, 3.2).subplots()
    for i, (rule, curve) in enumerate(found.curves.items()):
        known = [d for d in curve if d.measured_rise is not None]
        xs = [100 * deletion.share for deletion in known]
        ys = [deletion.measured_rise or 0.0 for deletion in known]
        colour, label = COLOURS[i % len(COLOURS)], NAMES.get(rule, rule)
        ax.plot(xs, ys, color=colour, marker=MARKERS[i], markersize=3.5, linewidth=1.2, label=label)
        predicted = [d for d in curve if d.rise is not None]
        if i == 0 and predicted:
            xs = [100 * deletion.share for deletion in predicted]
            ys = [deletion.rise or 0.0 for deletion in predicted]
            text = f"{label}, predicted"
            ax.plot(xs, ys, color=colour, linestyle="--", linewidth=1.2, label=text)
            errors = [deletion.stderr or 0.0 for deletion in predicted]
            if any(errors):
                ax.errorbar(xs, ys, errors, color=colour, linestyle="none", capsize=2)
    ax.set_xlabel("% of the weights deleted", fontsize=FONT)
    ax.set_ylabel("rise of the loss", fontsize=FONT)
    ax.legend(frameon=False, fontsize=FONT - 1.5)
    tidy(ax)
    return ax


def units(found: Pruning, *, ax: Axes | None = None) -> Axes:
    """½ρ(j) of every unit, sorted within its weight, on a log scale."""
    if ax is None:
        ax = new_figure(4.0, 3.2).subplots()
    for i, (name, second) in enumerate(found.second.items()):
        values = sorted((0.5 * second).clamp(min=0.0).tolist())
        ranks = [100 * (j + 0.5) / len(values) for j in range(len(values))]
        label = f"{shown(name.removesuffix('.weight'), 24)} ({len(values)})" if i < 8 else None
        ax.plot(ranks, values, linewidth=1.0, color=COLOURS[i % len(COLOURS)], label=label)
    ax.set_yscale("log")
    largest = max((float(second.max()) for second in found.second.values()), default=0.0)
    if largest > 0:  # a dead unit has 0, or what rounding leaves of it
        ax.set_ylim(bottom=1e-6 * largest)
    ax.set_xlabel("% of the units of a weight", fontsize=FONT)
    ax.set_ylabel("½ρ(j)", fontsize=FONT)
    ax.legend(frameon=False, fontsize=FONT - 1.5)
    tidy(ax)
    return ax
