"""What changes training, and what watches it.

These change training: the penalties on flatness, SAM and its kin, norm control. These only watch:
FlatnessMonitor and FlatnessStopping.
"""

from ._third_derivatives import thrice_differentiable as thrice_differentiable
from .flatness_penalty import FlatnessPenalty as FlatnessPenalty
from .head_penalties import HeadPenalty as HeadPenalty
from .head_penalties import head_penalty as head_penalty
from .kappa_penalty import KappaPenalty as KappaPenalty
from .kappa_penalty import kappa_penalty as kappa_penalty
from .monitor import FlatnessMonitor as FlatnessMonitor
from .norm_control import MeanVarianceNorm as MeanVarianceNorm
from .norm_control import WeightConstraint as WeightConstraint
from .norm_control import constrain_weights_ as constrain_weights_
from .norm_control import replace_norms as replace_norms
from .sam import ASAM as ASAM
from .sam import SAM as SAM
from .sam import NoiseSAM as NoiseSAM
from .stopping import FlatnessStopping as FlatnessStopping
from .trace_squared import trace_squared_of as trace_squared_of
from .trace_squared import trace_squared_penalty as trace_squared_penalty
