"""Pictures of what was measured: networks side by side, an audit, a density, learning rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.weight_space.density import SpectralDensity
from ...ground.errors import SpiritlevelError
from ...results import Report
from ...symmetries import CONFIDENCE_ONLY
from ...training.learning_rate.watch import CRITICAL, SHARPNESS, THRESHOLD
from ...verbs.audit import Audit, cell
from .style import (
    COLOURS,
    COLUMN,
    FONT,
    GREY,
    LINES,
    PAGE,
    PRINT_FONT,
    log_if_positive,
    log_scale,
    new_axes,
    new_figure,
    shown,
    style,
    tick_names,
    tidy,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


UNDECIDED = "#DDDDDD"
STRONGEST = 1000.0  # a factor beyond this is as dark as this
RATES = {  # of each column of a monitor: its name, its colour and its line
    SHARPNESS: ("sharpness", COLOURS[0], "-"),
    THRESHOLD: ("edge of stability", GREY, "--"),
    CRITICAL: ("critical sharpness of the last update", COLOURS[1], ":"),
}


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


def audit_matrix(audit: Audit, *, ax: Axes | None = None) -> Axes:
    """Measures down, moves across: = is unchanged, a number is the factor, ? is not decided.

    The darker a cell, the further its number moved. Moves right of the line change the confidence
    of the predictions, all others leave the function as it is. On the right, the verdict.
    """
    moves = [*audit.preserving, *(move for move in audit.moved if move in CONFIDENCE_ONLY)]
    if not moves:
        raise SpiritlevelError(
            "The audit found no move of this network, so there is no matrix to draw. "
            "`print(audit)` says which moves do not apply to it, and why."
        )
    measures = list(audit.original)
    wide = max(COLUMN, min(PAGE, 3.0 + 0.5 * len(moves)))
    ax = new_axes(ax, wide, 1.3 + 0.19 * len(measures))
    shades = [[_shade(audit, measure, move) for move in moves] for measure in measures]
    import matplotlib

    colours = matplotlib.colormaps["Oranges"].with_extremes(bad=UNDECIDED, under="white")
    ax.imshow(shades, cmap=colours, vmin=1e-9, vmax=1.25 * math.log10(STRONGEST), aspect="auto")
    small: dict[str, Any] = {"fontsize": PRINT_FONT - 1, "va": "center"}
    for i, measure in enumerate(measures):
        for j, move in enumerate(moves):
            ax.text(j, i, cell(audit, measure, move), ha="center", **small)
        kind = audit.verdict(measure).kind
        ax.text(len(moves) - 0.4, i, kind, color=GREY, clip_on=False, **small)
    names = [f"{shown(measure)}  {audit.original[measure].value:.3g}" for measure in measures]
    ax.set_yticks(range(len(measures)), names)
    ax.set_xticks(range(len(moves)), [shown(move) for move in moves], rotation=40, ha="right")
    ax.tick_params(labelsize=PRINT_FONT - 1, length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    split = 0 < len(audit.preserving) < len(moves)
    if split:
        ax.axvline(len(audit.preserving) - 0.5, color="black", linewidth=1)
    samples = audit.original.settings.get("num_samples")
    title(
        ax,
        "numbers: factors of a move; =: unchanged; ?: not decided",
        "right of the line: moves that change confidence alone" if split else "",
        f"n = {samples} samples",
    )
    return ax


def _shade(audit: Audit, measure: str, move: str) -> float:
    """How far a number moved, in powers of ten; nan where the errors leave it open."""
    outcome = audit.has_moved(measure, move)
    if outcome is None:
        return math.nan
    factor = abs(audit.factor(measure, move))
    if not outcome:
        return 0.0
    if factor == 0 or not math.isfinite(factor):
        return math.log10(STRONGEST)
    return min(abs(math.log10(factor)), math.log10(STRONGEST))


def density(
    result: SpectralDensity, eigenvalues: Sequence[float] = (), *, ax: Axes | None = None
) -> Axes:
    """The density of eigenvalues on a log scale, with single eigenvalues as ticks below it."""
    if ax is None:
        ax = new_figure(6.0, 3.4).subplots()
    grid, height = (values.tolist() for values in result.curve(4000))
    floor = 0.1 / result.size / max(grid[1] - grid[0], 1e-300) / len(grid)  # below one eigenvalue
    shown = [max(h, floor) for h in height]
    ax.fill_between(grid, floor, shown, color=COLOURS[0], alpha=0.25, linewidth=0)
    ax.plot(grid, shown, color=COLOURS[0], linewidth=1.2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=floor)
    if eigenvalues:
        ax.plot(
            list(eigenvalues),
            [0.02] * len(eigenvalues),
            linestyle="none",
            marker="|",
            markersize=12,
            color=COLOURS[1],
            transform=ax.get_xaxis_transform(),
            label="extreme eigenvalues",
        )
        ax.legend(frameon=False, fontsize=FONT)
    ax.set_xlabel("eigenvalue", fontsize=FONT)
    ax.set_ylabel("density", fontsize=FONT)
    tidy(ax)
    return ax


def learning_rate(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Sharpness and threshold over the steps; a line stands where the monitor warned.

    Args:
        rows: `monitor.rows` of a FlatnessMonitor with an optimizer.
        ax: where to draw; None makes a figure.
    """
    ax = new_axes(ax, 5.2, 3.0)
    drawn: list[float] = []
    for column, (label, colour, dashes) in RATES.items():
        points = [(row["step"], row[column]) for row in rows if _is_number(row.get(column))]
        if points:
            steps, values = zip(*points, strict=True)
            ax.plot(steps, values, dashes, color=colour, linewidth=1.2, label=label)
            drawn += values
    if not drawn:
        raise SpiritlevelError(
            "The 'rows' argument must be rows of a monitor that watches the learning rate. Got "
            f"{len(rows)} without {SHARPNESS!r}. Pass optimizer= to FlatnessMonitor."
        )
    for i, row in enumerate(row for row in rows if row.get("warning")):
        named = "warning" if i == 0 else None
        ax.axvline(row["step"], color=COLOURS[5], linewidth=0.8, label=named)
    log_if_positive(ax, "y", drawn)
    ax.set_xlabel("step", fontsize=FONT)
    ax.set_ylabel("curvature", fontsize=FONT)
    # above the axes: inside it would lie on lines
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 2}
    ax.legend(frameon=False, fontsize=FONT - 1, **above)
    tidy(ax)
    return ax


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)
