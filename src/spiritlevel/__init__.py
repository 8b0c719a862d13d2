"""How flat a network's minimum is: exact where mathematics allows, with an error bar elsewhere."""

import os as _os

from .cli.termination import importing as _importing

# A shell that asks for names does not wait for torch.
if "_SPIRITLEVEL_COMPLETE" not in _os.environ:
    with _importing():
        from .ground.errors import MissingExtra as MissingExtra
        from .ground.errors import SpiritlevelError as SpiritlevelError
        from .ground.plugins import announce as _announce
        from .measures.options import Options as Options
        from .model.adapters import merged as merged
        from .records.measurements import __version__ as __version__
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

        _announce("spiritlevel.studies", "spiritlevel_lab.population.existing.measuring")
        _announce("spiritlevel.studies", "spiritlevel_lab.papers")
        _announce("spiritlevel.pages", "spiritlevel.pages.report")
