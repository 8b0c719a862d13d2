"""How flat a network's minimum is: exact where mathematics allows, with an error bar elsewhere."""

import os as _os

from .cli.termination import importing as _importing

# A shell that asks for names does not wait for torch.
if "_SPIRITLEVEL_COMPLETE" not in _os.environ:
    with _importing():
        from .analysis.activations import activation_curvature as activation_curvature
        from .analysis.audit import audit as audit
        from .analysis.comparison import compare as compare
        from .analysis.landscape import landscape as landscape
        from .analysis.neurons import neurons as neurons
        from .analysis.operator import diagonal as diagonal
        from .analysis.operator import operator as operator
        from .analysis.pruning import pruning as pruning
        from .analysis.quantization import quantization as quantization
        from .analysis.spectra import density as density
        from .analysis.spectra import eigenvalues as eigenvalues
        from .api import cards as cards
        from .api import measure as measure
        from .api import preflight as preflight
        from .errors import MissingExtra as MissingExtra
        from .errors import SpiritlevelError as SpiritlevelError
        from .measures.options import Options as Options
        from .model.adapters import merged as merged
        from .plugins import announce as _announce
        from .records import __version__ as __version__
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

        _announce("spiritlevel.studies", "spiritlevel.study.existing.measuring")
        _announce("spiritlevel.studies", "spiritlevel.papers")
        _announce("spiritlevel.pages", "spiritlevel.pages.report")
