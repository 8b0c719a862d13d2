"""Pictures of reports, audits and spectra, for the screen and for a paper.

Every function draws into the axes it is given, or into a figure of its own, and returns the axes.
Colours are those of Okabe and Ito, which colour-blind readers tell apart; shapes differ as well.
"""

from .changes import pruning, quantization
from .labels import label_ends, label_points, spread
from .landscapes import landscape
from .reports import against, audit_matrix, density, layers, learning_rate, moves
from .style import (
    COLOURS,
    COLUMN,
    DPI,
    FONT,
    GREY,
    KINDS,
    LINES,
    MARKERS,
    PAGE,
    log_scale,
    new_figure,
    save,
    settle,
    style,
)

__all__ = [
    "COLOURS",
    "COLUMN",
    "DPI",
    "FONT",
    "GREY",
    "KINDS",
    "LINES",
    "MARKERS",
    "PAGE",
    "against",
    "audit_matrix",
    "density",
    "label_ends",
    "label_points",
    "landscape",
    "layers",
    "learning_rate",
    "log_scale",
    "moves",
    "new_figure",
    "pruning",
    "quantization",
    "save",
    "settle",
    "spread",
    "style",
]
