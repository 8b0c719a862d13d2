"""Which flatness numbers mean anything for a given network.

The network is moved along its own symmetries: its weights change, its function does not. A number
that changes under such a move says something about the weights and nothing about the function. Two
further moves change only the size of the logits; what follows them measures confidence. Every
moved copy is compared with the original on all of the data before anything is concluded from it.
"""

from .moving import audit as audit
from .record import FACTOR as FACTOR
from .record import NEARLY as NEARLY
from .record import Answer as Answer
from .record import Audit as Audit
from .record import Kind as Kind
from .record import Verdict as Verdict
from .record import cell as cell
