"""What the verbs return, in one place, for type hints and for reading saved files.

    from spiritlevel.results import Audit, Comparison

    audit = Audit.from_json(text)

A file that was edited or cut short is refused; the error says where it is wrong.
"""

from .engine.preflight import Preflight as Preflight
from .engine.weight_space.density import SpectralDensity as SpectralDensity
from .measures import Card as Card
from .records.measurements import Cost as Cost
from .records.measurements import Measurement as Measurement
from .records.measurements import Progress as Progress
from .records.measurements import Report as Report
from .records.measurements import Status as Status
from .verbs.activations import ActivationCurvature as ActivationCurvature
from .verbs.audit import Answer as Answer
from .verbs.audit import Audit as Audit
from .verbs.audit import Verdict as Verdict
from .verbs.comparison import Comparison as Comparison
from .verbs.comparison import Pair as Pair
from .verbs.comparison import PairFindings as PairFindings
from .verbs.comparison import Place as Place
from .verbs.comparison import Ranking as Ranking
from .verbs.comparison import Scale as Scale
from .verbs.landscape import Axis as Axis
from .verbs.landscape import Landscape as Landscape
from .verbs.landscape import Mark as Mark
from .verbs.neurons import Neurons as Neurons
from .verbs.operator import CurvatureOperator as CurvatureOperator
from .verbs.operator import Diagonal as Diagonal
from .verbs.operator import Solution as Solution
from .verbs.pruning import Deletion as Deletion
from .verbs.pruning import Pruning as Pruning
from .verbs.quantization import Plan as Plan
from .verbs.quantization import Quantization as Quantization
from .verbs.quantization import Width as Width
from .verbs.spectra import Eigenvalues as Eigenvalues
