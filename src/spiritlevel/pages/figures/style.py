"""How every picture looks: sizes, colours, axes; and how it becomes a file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...ground.errors import SpiritlevelError, brief, require
from ...ground.plain_text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (  # of networks: those of Okabe and Ito
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
LINES = (  # of measures: colour, dashes, width; wide pale lines lie below narrow ones
    ("#000000", "-", 2.0),
    ("#AA3377", "--", 2.0),
    ("#CCBB44", "-", 6.0),
    ("#4477AA", "-.", 2.0),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#666666"
FONT = 8.5  # points, in pictures for the screen
PRINT_FONT = 7.0  # points, in figures as wide as the column they are printed in
COLUMN, PAGE = 3.4, 7.0  # inches: one column of a paper, and its whole width
DPI, PRINT_DPI = 150, 300
MOST_MARKS = 2000  # of a panel that a vector file draws one by one; more become one image in it
LETTER = 0.62  # mean width of a letter, in font sizes
LONGEST_NAME, LONGEST_LINE = 40, 22  # letters: of a name, and of a line beside an axis

# Dates and versions in a file would make two drawings of one figure differ.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
KINDS = tuple(METADATA)
SAVING: dict[Any, Any] = {  # settings of matplotlib
    "svg.hashsalt": "spiritlevel",
    "pdf.fonttype": 42,  # TrueType: journals refuse the default, type 3
}


def new_figure(width: float, height: float, *, dpi: int = DPI) -> Figure:
    """A figure in inches, without pyplot and so without windows and global state."""
    require("matplotlib", what="Drawing", extra="plots")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or those of a new figure in print quality."""
    return ax if ax is not None else new_figure(width, height, dpi=PRINT_DPI).add_subplot()


def save(figure: Figure, kind: str) -> bytes:
    """The figure as "png", "svg" or "pdf"; the same figure gives the same bytes."""
    if kind not in KINDS:
        raise SpiritlevelError(f"The 'kind' must be one of {', '.join(KINDS)}. Got {brief(kind)}.")
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(SAVING):
        figure.savefig(buffer, format=kind, metadata=METADATA[kind])
    return _numbered_ids(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _numbered_ids(svg: bytes) -> bytes:
    """Number the ids of an SVG file in order.

    matplotlib makes them from coordinates whose last bits differ between processors.
    """
    text = svg.decode("utf-8")
    ids = dict.fromkeys(re.findall(r'id="([a-zA-Z][0-9a-f]{10})"', text))
    for number, name in enumerate(ids, start=1):
        text = re.sub(rf"(?<=[\"#]){name}(?=[\")])", f"{name[0]}{number}", text)
    return text.encode("utf-8")


def settle(figure: Figure) -> None:
    """Fix sizes and scales: names are placed among them, so nothing may move afterwards."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def style(index: int) -> dict[str, str]:
    """Colour and marker of the index-th network, the same in every panel; 49 differ."""
    turn = index // len(COLOURS)  # the colours begin again, with another marker each
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[(index + turn) % len(MARKERS)],
    }


def shown(name: object, longest: int = LONGEST_NAME) -> str:
    r"""A name as text: no formula between dollars, no line break, not too long.

    >>> shown("loss in $"), shown("_hidden")  # a leading underscore would keep it from legends
    ('loss in \\$', ' _hidden')
    >>> shown("features.denseblock3.denselayer12", 20)
    'features.…nselayer12'
    """
    text = _shortened(name, longest).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _shortened(name: object, longest: int) -> str:
    text = visible(" ".join(str(name).split()))
    if len(text) <= longest:
        return text
    half = (longest - 1) // 2  # both ends tell names apart
    return f"{text[:half]}…{text[len(text) - (longest - 1 - half) :]}"


def tidy(ax: Axes, *, font: float = FONT) -> None:
    """Leave two spines, a pale grid below the data and fonts of one size."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=font - 1)
    ax.xaxis.label.set_fontsize(font)
    ax.yaxis.label.set_fontsize(font)
    ax.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    ax.set_axisbelow(True)


def tick_names(ax: Axes, names: Sequence[str], *, font: float) -> None:
    """Names below positions 0, 1, …; slanted, upright or fewer where they would touch."""
    figure: Any = ax.figure
    room = ax.get_window_extent().width / figure.dpi * 72 / max(1, len(names))  # points for each
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    ax.tick_params(axis="x", labelsize=font)
    if longest * LETTER * font <= room:
        ax.set_xticks(range(len(names)), names)
        return
    flat = [name.replace("\n", ", ") for name in names]
    step = math.ceil(1.2 * font / room)  # upright names are as wide as a line is high
    ax.set_xticks(range(len(names)), [t if i % step == 0 else "" for i, t in enumerate(flat)])
    slanted = room > 2 * font
    ax.tick_params(axis="x", rotation=40 if slanted else 90)
    if slanted:
        for label in ax.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def y_label(ax: Axes, text: str) -> None:
    """Beside the axis, in lines that are no longer than a panel is high."""
    ax.set_ylabel("\n".join(shown(line).strip() for line in _lines(_shortened(text, LONGEST_NAME))))


def _lines(text: str) -> list[str]:
    """Broken after blanks, dots and underscores.

    >>> _lines("gap: test loss − training loss")
    ['gap: test loss − ', 'training loss']
    """
    lines = [""]
    for part in re.findall(rf"[^ ._]{{1,{LONGEST_LINE - 1}}}[ ._]?|[ ._]", text):
        if len(lines[-1]) + len(part) > LONGEST_LINE:
            lines.append("")
        lines[-1] += part
    return lines


def title(ax: Axes, *lines: str) -> None:
    """What is seen, in small grey type above the axes; empty lines are left out."""
    text = "\n".join(visible(line).replace("$", r"\$") for line in lines if line)
    look: dict[str, Any] = {"fontsize": PRINT_FONT - 0.5, "color": GREY, "wrap": True}
    ax.set_title(text, loc="left", **look)


def log_if_positive(ax: Axes, axis: str, values: Sequence[float]) -> None:
    """Curvatures and gaps span decades; a value at or below zero has no logarithm."""
    if min(values) > 0:
        room = 1.6 if axis == "x" else 1.2  # the margins
        log_scale(ax, axis, decades=room * math.log10(max(values) / min(values)))


def log_scale(ax: Axes, axis: str, *, decades: float) -> None:
    """A logarithmic axis with plain numbers on it, as many as are easy to read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    line = ax.xaxis if axis == "x" else ax.yaxis
    if decades < 0.7:  # 1, 2, 5 alone may leave one number or none on the axis
        line.set_major_locator(MaxNLocator(3 if decades > 0.4 else 4, steps=(1, 2, 2.5, 5, 10)))
    else:
        line.set_major_locator(LogLocator(subs=(1.0,) if decades > 2 else (1.0, 2.0, 5.0)))
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_minor_formatter(NullFormatter())
