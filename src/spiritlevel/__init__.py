"""How flat a network's minimum is: exact where mathematics allows, with an error bar elsewhere."""

from ._core import Cost as Cost
from ._core import Measurement as Measurement
from ._core import MissingExtra as MissingExtra
from ._core import Report as Report
from ._core import SpiritlevelError as SpiritlevelError
from ._core import Status as Status
from ._core import __version__ as __version__
from .api import Preflight as Preflight
from .api import measure as measure
from .api import measures as measures
from .api import preflight as preflight
from .audits import Audit as Audit
from .audits import audit as audit
from .comparisons import Comparison as Comparison
from .comparisons import compare as compare
from .estimators.density import Density as Density
from .estimators.options import Options as Options
from .per_neuron import Neurons as Neurons
from .per_neuron import neurons as neurons
from .spectra import Eigenvalues as Eigenvalues
from .spectra import density as density
from .spectra import eigenvalues as eigenvalues
