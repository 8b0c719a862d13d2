"""Pictures of studies; they are drawn and saved as those of `spiritlevel.pages.figures`."""

from .forest import correlations
from .heatmap import agreement
from .quartiles import boxes, layer_profile, training
from .scatter import bound, measure_against
from .studies import StudyFigures, study_figures

__all__ = [
    "StudyFigures",
    "agreement",
    "bound",
    "boxes",
    "correlations",
    "layer_profile",
    "measure_against",
    "study_figures",
    "training",
]
