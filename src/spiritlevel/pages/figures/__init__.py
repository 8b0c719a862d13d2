"""Pictures of reports, audits and spectra, for the screen and for a paper.

Every function draws into the axes it is given, or into a figure of its own, and returns the axes.
Colours are those of Okabe and Ito, which colour-blind readers tell apart; shapes differ as well.
"""

from .changes import pruning as pruning
from .changes import quantization as quantization
from .labels import label_ends as label_ends
from .labels import label_points as label_points
from .labels import spread as spread
from .landscapes import landscape as landscape
from .reports import against as against
from .reports import audit_matrix as audit_matrix
from .reports import density as density
from .reports import layers as layers
from .reports import learning_rate as learning_rate
from .reports import moves as moves
from .style import COLOURS as COLOURS
from .style import COLUMN as COLUMN
from .style import DPI as DPI
from .style import FONT as FONT
from .style import GREY as GREY
from .style import KINDS as KINDS
from .style import LINES as LINES
from .style import MARKERS as MARKERS
from .style import PAGE as PAGE
from .style import log_scale as log_scale
from .style import new_figure as new_figure
from .style import save as save
from .style import settle as settle
from .style import style as style
