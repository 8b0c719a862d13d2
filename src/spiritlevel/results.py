"""What the verbs return, in one place, for type hints and for reading saved files.

from spiritlevel.results import Audit, Comparison

audit = Audit.from_json(text)
"""

from .analysis.activations import ActivationCurvature as ActivationCurvature
from .analysis.audit import Answer as Answer
from .analysis.audit import Audit as Audit
from .analysis.audit import Verdict as Verdict
from .analysis.comparison import AlsoDiffering as AlsoDiffering
from .analysis.comparison import Comparison as Comparison
from .analysis.comparison import Disagreement as Disagreement
from .analysis.comparison import Explained as Explained
from .analysis.comparison import Pair as Pair
from .analysis.comparison import PairFindings as PairFindings
from .analysis.comparison import Place as Place
from .analysis.comparison import Ranking as Ranking
from .analysis.landscape import Axis as Axis
from .analysis.landscape import Landscape as Landscape
from .analysis.landscape import Mark as Mark
from .analysis.neurons import Neurons as Neurons
from .analysis.operator import CurvatureOperator as CurvatureOperator
from .analysis.operator import Diagonal as Diagonal
from .analysis.operator import Solution as Solution
from .analysis.pruning import Deletion as Deletion
from .analysis.pruning import Pruning as Pruning
from .analysis.quantization import Plan as Plan
from .analysis.quantization import Quantization as Quantization
from .analysis.quantization import Width as Width
from .analysis.spectra import Eigenvalues as Eigenvalues
from .engine.preflight import Preflight as Preflight
from .engine.weight_space.density import SpectralDensity as SpectralDensity
from .measures import Card as Card
from .records import Cost as Cost
from .records import Measurement as Measurement
from .records import Progress as Progress
from .records import Report as Report
from .records import Status as Status
