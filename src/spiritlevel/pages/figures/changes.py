"""Changes of the weights, rounding and deleting: the loss increase, and what is chosen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...records.content import Figure as Content
from ...results import Pruning, Quantization
from .style import COLOURS, FONT, GREY, MARKERS, new_figure, shown, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def quantization(found: Quantization) -> Figure:
    """Two panels: predicted and measured increases over the mean width, and the chosen plan."""
    height = max(3.2, 1.0 + 0.17 * len(found.sizes))
    figure = new_figure(8.2, min(height, 12.0))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    size_and_rise(found, ax=left)
    bits_of_weights(found, ax=right)
    return figure


def pruning(found: Pruning) -> Figure:
    """Two panels: measured and predicted increases by share, and ½ρ(j) of every unit by weight."""
    figure = new_figure(8.2, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    share_and_rise(found, ax=left)
    units(found, ax=right)
    return figure


def _curves(found: Quantization | Pruning, ax: Axes, **legend: Any) -> None:
    """The increases of the loss as the record tells them; what is predicted is dashed."""
    [told] = [part for part in found.describe() if isinstance(part, Content)]
    names = list(dict.fromkeys(series.name.partition(",")[0] for series in told.series))
    for series in told.series:
        kind, _, how = series.name.partition(", ")
        measured, place = how == "measured", names.index(kind)
        look: dict[str, Any] = {"linestyle": "-" if measured else ":" if "terms" in how else "--"}
        look |= {"marker": MARKERS[place] if measured else "", "color": COLOURS[place]}
        ax.plot(series.x, series.y, label=series.name, linewidth=1.2, markersize=3.5, **look)
    _finish(ax, told.x_label, told.y_label, **legend)


def size_and_rise(found: Quantization, *, ax: Axes) -> None:
    """The loss increase against bits per weight, of the best plans and of uniform widths."""
    largest = max(abs(plan.increase) for plan in [*found.frontier, *found.uniforms]) or 1.0
    # rounding may also lower the loss, so zero must be on the axis
    ax.set_yscale("symlog", linthresh=10.0 ** round(math.log10(largest) - 3))
    _curves(found, ax, loc="upper right")
    if found.chosen is not None:
        ax.axvline(found.chosen.mean_bits, color=GREY, linewidth=0.8)


def bits_of_weights(found: Quantization, *, ax: Axes) -> None:
    """The width of every weight in the chosen plan, or in the one nearest to 4 bits."""
    plan = found.chosen
    if plan is None:
        plan = min(found.frontier, key=lambda each: abs(each.mean_bits - 4.0))
    rows = range(len(plan.bits))
    ax.barh(rows, list(plan.bits.values()), color=COLOURS[0], height=0.7)
    font = FONT - 1 if len(rows) <= 40 else FONT - 3
    labels = [f"{_weight(name)} ({found.sizes[name]:,})" for name in plan.bits]
    ax.set_yticks(rows, labels)
    ax.invert_yaxis()
    ax.set_xticks(list(found.options))
    ax.set_xlabel(f"bits, {plan.mean_bits:.2f} on average")
    tidy(ax)
    ax.tick_params(axis="y", labelsize=font)


def share_and_rise(found: Pruning, *, ax: Axes) -> None:
    """The loss increase against the share of the weights that is deleted, by rule."""
    _curves(found, ax)
    best = next(iter(found.curves.values()), [])
    for each in best:
        if each.rise is not None and each.stderr:
            ax.errorbar(each.share, each.rise, each.stderr, capsize=2, color=COLOURS[0])


def units(found: Pruning, *, ax: Axes) -> None:
    """½ρ(j) of every unit, sorted within its weight, on a log scale."""
    for i, (name, second) in enumerate(found.second.items()):
        values = sorted((0.5 * second).clamp(min=0.0).tolist())
        ranks = [100 * (j + 0.5) / len(values) for j in range(len(values))]
        label = f"{_weight(name, 24)} ({len(values)})" if i < 8 else None
        ax.plot(ranks, values, linewidth=1.0, color=COLOURS[i % len(COLOURS)], label=label)
    ax.set_yscale("log")
    largest = max((float(second.max()) for second in found.second.values()), default=0.0)
    if largest > 0:  # a dead unit has 0, or what rounding leaves of it
        ax.set_ylim(bottom=1e-6 * largest)
    _finish(ax, "% of the units of a weight", "½ρ(j)")


def _weight(name: str, *longest: int) -> str:
    return shown(name.removesuffix(".weight"), *longest)


def _finish(ax: Axes, x: str, y: str, **legend: Any) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.legend(frameon=False, fontsize=FONT - 1.5, **legend)
    tidy(ax)
