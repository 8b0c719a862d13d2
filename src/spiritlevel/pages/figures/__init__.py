"""Pictures of reports, audits, spectra and studies, for the screen and for a paper.

Every function draws into the axes it is given, or into a figure of its own, and returns the axes.
Colours are those of Okabe and Ito, which colour-blind readers tell apart; shapes differ as well.
"""

from .audits import audit_matrix
from .boxplots import boxes
from .changes import pruning, quantization
from .dynamics import training
from .forest import correlations
from .heatmap import agreement
from .labels import label_ends, label_points, spread
from .landscapes import landscape
from .learning_rates import learning_rate
from .profiles import layer_profile
from .reports import against, layers, moves
from .scatter import bound, measure_against
from .spectra import density
from .studies import StudyFigures, study_figures
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
    "StudyFigures",
    "against",
    "agreement",
    "audit_matrix",
    "bound",
    "boxes",
    "correlations",
    "density",
    "label_ends",
    "label_points",
    "landscape",
    "layer_profile",
    "layers",
    "learning_rate",
    "log_scale",
    "measure_against",
    "moves",
    "new_figure",
    "pruning",
    "quantization",
    "save",
    "settle",
    "spread",
    "study_figures",
    "style",
    "training",
]
