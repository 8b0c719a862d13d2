"""How flat a network's minimum is: exact where mathematics allows, with an error bar elsewhere."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .ground.lazy import lazy as _lazy
from .ground.version import __version__ as __version__

if _TYPE_CHECKING:
    from .ground.errors import MissingExtra as MissingExtra
    from .ground.errors import SpiritlevelError as SpiritlevelError
    from .measures.options import Options as Options
    from .model.adapters import merged as merged
    from .results import Measurement as Measurement
    from .results import Report as Report
    from .training import ASAM as ASAM
    from .training import SAM as SAM
    from .training import FlatnessMonitor as FlatnessMonitor
    from .training import FlatnessPenalty as FlatnessPenalty
    from .training import FlatnessStopping as FlatnessStopping
    from .training import HeadPenalty as HeadPenalty
    from .training import KappaPenalty as KappaPenalty
    from .training import NoiseSAM as NoiseSAM
    from .verbs.activations import activation_curvature as activation_curvature
    from .verbs.audit import audit as audit
    from .verbs.comparison import compare as compare
    from .verbs.landscape import landscape as landscape
    from .verbs.measuring import cards as cards
    from .verbs.measuring import measure as measure
    from .verbs.measuring import preflight as preflight
    from .verbs.neurons import neurons as neurons
    from .verbs.operator import diagonal as diagonal
    from .verbs.operator import operator as operator
    from .verbs.pruning import pruning as pruning
    from .verbs.quantization import quantization as quantization
    from .verbs.spectra import density as density
    from .verbs.spectra import eigenvalues as eigenvalues

_HOMES = {
    "activation_curvature": ".verbs.activations",
    "ASAM": ".training",
    "audit": ".verbs.audit",
    "cards": ".verbs.measuring",
    "compare": ".verbs.comparison",
    "density": ".verbs.spectra",
    "diagonal": ".verbs.operator",
    "eigenvalues": ".verbs.spectra",
    "FlatnessMonitor": ".training",
    "FlatnessPenalty": ".training",
    "FlatnessStopping": ".training",
    "HeadPenalty": ".training",
    "KappaPenalty": ".training",
    "landscape": ".verbs.landscape",
    "measure": ".verbs.measuring",
    "Measurement": ".results",
    "merged": ".model.adapters",
    "MissingExtra": ".ground.errors",
    "neurons": ".verbs.neurons",
    "NoiseSAM": ".training",
    "operator": ".verbs.operator",
    "Options": ".measures.options",
    "preflight": ".verbs.measuring",
    "pruning": ".verbs.pruning",
    "quantization": ".verbs.quantization",
    "Report": ".results",
    "SAM": ".training",
    "SpiritlevelError": ".ground.errors",
}
_ROOMS = ("inputs", "measures", "pages", "results", "training")
__getattr__, __dir__ = _lazy(__name__, _HOMES, _ROOMS)
