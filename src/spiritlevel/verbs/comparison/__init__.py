"""Several networks side by side: ranks as far as they are certain, and what explains them.

A difference in flatness may only be a difference in scale or in confidence. Two checks show it: the
same order must hold under the measure's counterpart, which rescaling does not change, and it must
hold when all networks are made equally confident by scaling their logits. The counterparts are
measured too; for a measure without one, the comparison says that scale was not checked. Other
differences between two networks cannot be removed, so they are named.
"""

from .comparison import Comparison as Comparison
from .measuring import compare as compare
from .measuring import matched_comparison as matched_comparison
from .measuring import measure_for_comparison as measure_for_comparison
from .ranking import AlsoDiffering as AlsoDiffering
from .ranking import Disagreement as Disagreement
from .ranking import Explained as Explained
from .ranking import Pair as Pair
from .ranking import PairFindings as PairFindings
from .ranking import Place as Place
from .ranking import Ranking as Ranking
from .ranking import counterparts as counterparts
