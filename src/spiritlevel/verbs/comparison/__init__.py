"""Several networks side by side: ranks as far as they are certain, and what explains them.

A difference in flatness may only be one in scale or in confidence. So networks are ranked only by
measures that no symmetry of theirs changes, which a small audit finds out, and each two of them
are compared once they are equally confident, by scaling logits. Other differences between two
networks cannot be removed, so they are named.
"""

from .comparison import Comparison as Comparison
from .measuring import compare as compare
from .measuring import compared as compared
from .measuring import measure_for_comparison as measure_for_comparison
from .ranking import Pair as Pair
from .ranking import PairFindings as PairFindings
from .ranking import Place as Place
from .ranking import Ranking as Ranking
from .scale import Scale as Scale
