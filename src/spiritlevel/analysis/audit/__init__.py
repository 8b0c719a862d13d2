"""Which flatness numbers mean anything for a given network.

The network is moved along its own symmetries: its weights change, its function does not. A number
that changes under such a move says something about the weights and nothing about the function. Two
further moves change only the size of the logits; what follows them measures confidence. Every
moved copy is held against the original on all of the data before anything is concluded from it.
"""

from .moving import audit as audit
from .record import ANSWERS as ANSWERS
from .record import VALUE as VALUE
from .record import Audit as Audit
from .record import answers as answers
from .record import cell as cell
from .verdict import NEARLY as NEARLY
from .verdict import WORDS as WORDS
from .verdict import Answer as Answer
from .verdict import Kind as Kind
from .verdict import Verdict as Verdict
