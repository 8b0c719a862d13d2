"""Statistics of a population of models: what a measure says about a target, and how surely."""

from .clusters import clustered
from .confounding import Confounding
from .correlations import Correlation, kendall, pearson, spearman
from .differences import Strongest, difference
from .granulated import AxisKendall, GranulatedKendall, granulated_kendall
from .holm import Holm, holm
from .judged import Judged, judge, partial_judged
from .levels import Levels, Within, levels
from .partial import partial_correlation
from .preflight import Preflight, preflight
from .regression import Regression, Tails, regression, tails
from .sign_error import Environment, SignError, sign_error
from .table import Association, Associations, associated, associations, summary
from .tables import MeasureStatistics
from .text import StudyStatistics

__all__ = [
    "Association",
    "Associations",
    "AxisKendall",
    "Confounding",
    "Correlation",
    "Environment",
    "GranulatedKendall",
    "Holm",
    "Judged",
    "Levels",
    "MeasureStatistics",
    "Preflight",
    "Regression",
    "SignError",
    "Strongest",
    "StudyStatistics",
    "Tails",
    "Within",
    "associated",
    "associations",
    "clustered",
    "difference",
    "granulated_kendall",
    "holm",
    "judge",
    "kendall",
    "levels",
    "partial_correlation",
    "partial_judged",
    "pearson",
    "preflight",
    "regression",
    "sign_error",
    "spearman",
    "summary",
    "tails",
]
