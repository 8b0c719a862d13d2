"""Bit widths: the rise of the loss against the size, and which weight gets how many bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...results import Plan, Quantization
from .style import (
    COLOURS,
    FONT,
    GREY,
    MARKERS,
    new_figure,
    shown,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def quantization(found: Quantization) -> Figure:
    """Two panels: predicted and measured rises over the mean width, and the chosen plan."""
    height = max(3.2, 1.0 + 0.17 * len(found.sizes))
    figure = new_figure(8.2, min(height, 12.0))
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    size_and_rise(found, ax=left)
    bits_of_weights(found, ax=right)
    return figure


def size_and_rise(found: Quantization, *, ax: Axes | None = None) -> Axes:
    """The rise of the loss against bits per weight, of the best plans and of uniform widths."""
    if ax is None:
        ax = new_figure(4.6, 3.2).subplots()
    best, uniform = COLOURS[0], COLOURS[1]
    _line(ax, found.frontier, "rise", best, "--", "mixed widths, predicted")
    _line(ax, found.frontier, "joint_rise", best, ":", "mixed widths, predicted with cross terms")
    _line(ax, found.frontier, "measured_rise", best, "-", "mixed widths, measured", MARKERS[0])
    _line(ax, found.uniforms, "measured_rise", uniform, "-", "uniform, measured", MARKERS[1])
    if found.chosen is not None:
        ax.axvline(found.chosen.mean_bits, color=GREY, linewidth=0.8)
    plans = [*found.frontier, *found.uniforms]
    largest = max(abs(plan.measured_rise or plan.rise) for plan in plans) or 1.0
    # rounding may also lower the loss, so zero must be on the axis
    ax.set_yscale("symlog", linthresh=10.0 ** round(math.log10(largest) - 3))
    ax.set_xlabel("bits per weight", fontsize=FONT)
    ax.set_ylabel("rise of the loss", fontsize=FONT)
    ax.legend(frameon=False, fontsize=FONT - 1.5, loc="upper right")
    tidy(ax)
    return ax


def bits_of_weights(found: Quantization, *, ax: Axes | None = None) -> Axes:
    """The width of every weight in the chosen plan, or in the one nearest to 4 bits."""
    plan = found.chosen
    if plan is None:
        plan = min(found.frontier, key=lambda each: abs(each.mean_bits - 4.0))
    names = list(plan.bits)
    if ax is None:
        ax = new_figure(4.0, 1.0 + 0.17 * len(names)).subplots()
    rows = range(len(names))
    ax.barh(rows, [plan.bits[name] for name in names], color=COLOURS[0], height=0.7)
    font = FONT - 1 if len(names) <= 40 else FONT - 3
    labels = [f"{shown(name.removesuffix('.weight'))} ({found.sizes[name]:,})" for name in names]
    ax.set_yticks(rows, labels, fontsize=font)
    ax.invert_yaxis()
    ax.set_xticks(list(found.options))
    ax.set_xlabel(f"bits, {plan.mean_bits:.2f} on average", fontsize=FONT)
    tidy(ax)
    ax.tick_params(axis="y", labelsize=font)
    return ax


def _line(
    ax: Axes,
    plans: list[Plan],
    field: str,
    colour: str,
    dashes: str,
    label: str,
    marker: str | None = None,
) -> None:
    points = [(plan.mean_bits, getattr(plan, field)) for plan in plans]
    known = [(x, y) for x, y in points if y is not None]
    if known:
        xs, ys = zip(*known, strict=True)
        look: dict[str, Any] = {"linewidth": 1.2, "markersize": 3.5}
        ax.plot(xs, ys, color=colour, linestyle=dashes, marker=marker, label=label, **look)
