"""Changes of the weights, rounding and deleting: the loss increase, and what is chosen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...results import Plan, Pruning, Quantization
from .style import COLOURS, FONT, GREY, MARKERS, new_figure, shown, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RULES = {
    "joint": "by curvature, with terms between units",
    "curvature": "by curvature",
    "magnitude": "by magnitude",
    "random": "at random",
}


def quantization(found: Quantization) -> Figure:
    """Two panels: loss increase over the mean width, and the chosen plan."""
    height = max(3.2, 1.0 + 0.17 * len(found.sizes))
    figure = new_figure(8.2, min(height, 12.0))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    size_and_rise(found, ax=left)
    bits_of_weights(found, ax=right)
    return figure


def pruning(found: Pruning) -> Figure:
    """Two panels: loss increase by share, and ½ρ(j) of every unit by weight."""
    figure = new_figure(8.2, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    share_and_rise(found, ax=left)
    units(found, ax=right)
    return figure


def size_and_rise(found: Quantization, *, ax: Axes) -> None:
    """The loss increase against bits per weight, of the best plans and of uniform widths."""

    def draw(plans: list[Plan], rise: str, label: str, **look: Any) -> None:
        known = [plan for plan in plans if getattr(plan, rise) is not None]
        if known:
            xs, ys = [plan.mean_bits for plan in known], [getattr(plan, rise) for plan in known]
            ax.plot(xs, ys, label=label, linewidth=1.2, markersize=3.5, **look)

    best: dict[str, Any] = {"color": COLOURS[0]}
    draw(found.frontier, "rise", "mixed widths, predicted", linestyle="--", **best)
    crossed = "mixed widths, predicted with cross terms"
    draw(found.frontier, "joint_rise", crossed, linestyle=":", **best)
    draw(found.frontier, "measured_rise", "mixed widths, measured", marker=MARKERS[0], **best)
    uniform: dict[str, Any] = {"color": COLOURS[1], "marker": MARKERS[1]}
    draw(found.uniforms, "measured_rise", "uniform, measured", **uniform)
    if found.chosen is not None:
        ax.axvline(found.chosen.mean_bits, color=GREY, linewidth=0.8)
    plans = [*found.frontier, *found.uniforms]
    largest = max(abs(plan.measured_rise or plan.rise) for plan in plans) or 1.0
    # rounding may also lower the loss, so zero must be on the axis
    ax.set_yscale("symlog", linthresh=10.0 ** round(math.log10(largest) - 3))
    ax.set_title("What rounding costs", fontsize=FONT + 1)
    _finish(ax, "bits per weight", "loss increase", loc="lower left")


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
    ax.set_title("Bits of each weight", fontsize=FONT + 1)
    ax.set_xlabel(f"bits per weight, {plan.mean_bits:.2f} on average")
    tidy(ax)
    ax.tick_params(axis="y", labelsize=font)


def share_and_rise(found: Pruning, *, ax: Axes) -> None:
    """The loss increase against the share of the weights that is deleted, by rule."""
    for i, (rule, curve) in enumerate(found.curves.items()):
        look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)]}
        label = RULES.get(rule, rule)
        known = [d for d in curve if d.measured_rise is not None]
        xs, ys = [100 * d.share for d in known], [d.measured_rise or 0.0 for d in known]
        ax.plot(xs, ys, label=label, marker=MARKERS[i], markersize=3.5, linewidth=1.2, **look)
        predicted = [d for d in curve if d.rise is not None]
        if i == 0 and predicted:
            xs, ys = [100 * d.share for d in predicted], [d.rise or 0.0 for d in predicted]
            ax.plot(xs, ys, label=f"{label}, predicted", linestyle="--", linewidth=1.2, **look)
            errors = [d.stderr or 0.0 for d in predicted]
            if any(errors):
                ax.errorbar(xs, ys, errors, linestyle="none", capsize=2, **look)
    ax.set_title("What deleting costs", fontsize=FONT + 1)
    _finish(ax, "% of the weights deleted", "loss increase")


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
    ax.set_title("What each unit costs alone", fontsize=FONT + 1)
    _finish(ax, "% of the units of a weight", "predicted loss increase ½ρ(j)")


def _weight(name: str, *longest: int) -> str:
    return shown(name.removesuffix(".weight"), *longest)


def _finish(ax: Axes, x: str, y: str, **legend: Any) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.legend(frameon=False, fontsize=FONT - 1.5, **legend)
    tidy(ax)
