"""The demo's picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import plots
from .networks import EARLY, LONG, SGD
from .result import ALL, SAME, SHOWN, Demo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

HEADING: dict[str, Any] = {"x": 0.005, "ha": "left", "fontsize": 11, "fontweight": "bold"}
NOTE: dict[str, Any] = {"fontsize": 8.5, "loc": "left", "color": plots.GREY}


def draw(demo: Demo) -> dict[str, bytes]:
    """PNG and SVG: four measures against the gap; layers; two moves that change no function."""
    figure = plots.new_figure(14, 8.6)
    halves: Any = figure.subfigures(2, 1, height_ratios=(1.08, 1))
    upper, lower = halves
    left, right = lower.subfigures(1, 2, width_ratios=(1, 1.7))
    scatters = _draw_gaps(demo, upper)
    profile = _draw_layers(demo, left)
    _draw_moves(demo, right)
    plots.settle(figure)
    for ax in scatters:
        plots.label_points(ax)
    plots.label_ends(profile)
    return {"png": plots.save(figure, "png"), "svg": plots.save(figure, "svg")}


def _draw_gaps(demo: Demo, figure: SubFigure) -> list[Axes]:
    gaps = {name: t.gap for name, t in demo.trained.items()}
    errors = {name: t.test_loss_stderr for name, t in demo.trained.items()}
    groups = demo.groups()
    axes: list[Axes] = list(figure.subplots(1, len(SHOWN), sharey=True))
    for ax, measure in zip(axes, SHOWN, strict=True):
        plots.against(demo.reports, gaps, measure, errors=errors, path=(EARLY, SGD, LONG), ax=ax)
        words = [f"Kendall τ with the gap: {demo.agreement(measure, groups[ALL])}"]
        if SAME in groups:
            words.append(f"of equal training loss: {demo.agreement(measure, groups[SAME])}")
        ax.set_title("\n".join(words), **NOTE)
        ax.set_xlabel(measure, fontsize=10, fontweight="bold")
    axes[0].set_ylabel("generalization gap: test loss − train loss")
    figure.suptitle(
        "Does the measure order the networks as their generalization gap does?", **HEADING
    )
    figure.text(
        0.995,
        0.985,
        "arrows: one training run, carried on; bars: standard error of the test loss",
        ha="right",
        va="top",
        fontsize=8.5,
        color=plots.GREY,
    )
    return axes


def _draw_layers(demo: Demo, figure: SubFigure) -> Axes:
    ax = figure.subplots()
    plots.layers(demo.reports, "relative.kappa", ax=ax)
    figure.suptitle("Where it comes from: relative.kappa of each layer", **HEADING)
    ax.set_xlim(-0.15, 2.95)
    return ax


def _draw_moves(demo: Demo, figure: SubFigure) -> None:
    figure.suptitle(
        f"One function ({SGD!r}), other weights: what moves here is no property of the function",
        **HEADING,
    )
    axes = figure.subplots(1, 2, sharey=True)
    for ax, move, words in zip(
        axes,
        (demo.layerwise, demo.neuronwise),
        ("all of fc1 × α, fc2 ÷ α", "every second neuron of fc1 × α, what reads it ÷ α"),
        strict=True,
    ):
        plots.moves(move.factors, move.curves, ax=ax)
        ax.set_title(words, **NOTE)
        ax.set_xlabel("α")
    axes[0].set_ylabel("value, relative to α = 1")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(min(low, 0.5), max(high, 3))
    axes[0].legend(frameon=False, fontsize=8.5, loc="upper center")
