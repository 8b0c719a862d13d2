"""The catalogue: one folder per family, one function and one card per measure.

What a measure of your own needs is importable from here:

    from spiritlevel.measures import Measured, Measurement, Needs, Option, Workspace, measure

`number`, `whole`, `one_of` and `or_none` make the tests that options are declared with.
"""

from ..engine.data_pass import Needs as Needs
from ..engine.row_estimator import estimate_rows as estimate_rows
from ..engine.workspace import Workspace as Workspace
from ..ground.need import number as number
from ..ground.need import one_of as one_of
from ..ground.need import or_none as or_none
from ..ground.need import whole as whole
from ..records.measurements import Measurement as Measurement
from . import activity as activity
from . import bound as bound
from . import curvature as curvature
from . import decomposition as decomposition
from . import head as head
from . import neuron as neuron
from . import norms as norms
from . import pac_bayes as pac_bayes
from . import relative as relative
from . import requirements as requirements
from . import scaled as scaled
from . import sensitivity as sensitivity
from . import sharpness as sharpness
from . import softmax as softmax
from .hessian_results import hessian_measurement as hessian_measurement
from .options import Option as Option
from .registry import ALL_BUT_MIXING as ALL_BUT_MIXING
from .registry import EVERY as EVERY
from .registry import METHODS as METHODS
from .registry import OF_OUTPUTS as OF_OUTPUTS
from .registry import Card as Card
from .registry import Measured as Measured
from .registry import get as get
from .registry import measure as measure
from .registry import names as names
from .registry import registered_cards as registered_cards
from .requirements import layer_weights as layer_weights
from .requirements import left_out_weights as left_out_weights
from .requirements import measured_weights as measured_weights
