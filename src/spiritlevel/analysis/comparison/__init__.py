"""Several networks side by side: ranks as far as they are certain, and what explains them.

A difference in flatness may be no more than a difference in scale or in confidence. Two checks say
so: the same order must hold under the measure's counterpart that rescaling leaves alone, and it
must survive when all networks are made equally confident by scaling their logits. The counterparts
are measured along; where there is none, the comparison says that scale was not checked. What else
differs between two networks cannot be made equal, so it is named beside the difference.
"""

from .comparison import FORMAT as FORMAT
from .comparison import Comparison as Comparison
from .differences import AlsoDiffering as AlsoDiffering
from .differences import Disagreement as Disagreement
from .differences import Explained as Explained
from .differences import Pair as Pair
from .measuring import compare as compare
from .measuring import matched_comparison as matched_comparison
from .measuring import measure_for_comparison as measure_for_comparison
from .orders import Place as Place
from .orders import counterparts as counterparts
