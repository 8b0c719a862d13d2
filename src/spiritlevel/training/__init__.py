"""What changes training, and what watches it.

These change training: penalties, SAM and its variants, norm control. These only watch it:
FlatnessMonitor and FlatnessStopping.
"""

from .monitor.monitor import FlatnessMonitor as FlatnessMonitor
from .norm_control import MeanVarianceNorm as MeanVarianceNorm
from .norm_control import WeightConstraint as WeightConstraint
from .norm_control import constrain_weights_ as constrain_weights_
from .norm_control import replace_norms as replace_norms
from .penalties.flatness_penalty import FlatnessPenalty as FlatnessPenalty
from .penalties.flatness_penalty import trace_squared_of as trace_squared_of
from .penalties.flatness_penalty import trace_squared_penalty as trace_squared_penalty
from .penalties.head_penalty import HeadPenalty as HeadPenalty
from .penalties.head_penalty import head_penalty as head_penalty
from .penalties.kappa_penalty import KappaPenalty as KappaPenalty
from .penalties.kappa_penalty import kappa_penalty as kappa_penalty
from .penalties.penalty import Penalty as Penalty
from .penalties.penalty_batch import PenaltyBatch as PenaltyBatch
from .penalties.registry import build_penalty as build_penalty
from .penalties.registry import register_penalty as register_penalty
from .penalties.third_derivatives import thrice_differentiable as thrice_differentiable
from .sam.optimizers import ASAM as ASAM
from .sam.optimizers import SAM as SAM
from .sam.optimizers import NoiseSAM as NoiseSAM
from .stopping import FlatnessStopping as FlatnessStopping
