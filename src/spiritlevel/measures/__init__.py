"""The catalogue: one folder per family, one function and one card per measure."""

from . import activity as activity
from . import bound as bound
from . import curvature as curvature
from . import decomposition as decomposition
from . import head as head
from . import neuron as neuron
from . import norms as norms
from . import pac_bayes as pac_bayes
from . import relative as relative
from . import scaled as scaled
from . import sensitivity as sensitivity
from . import sharpness as sharpness
from . import softmax as softmax
from .registry import METHODS as METHODS
from .registry import Card as Card
from .registry import Measured as Measured
from .registry import get as get
from .registry import measure as measure
from .registry import names as names
