"""The experiments of the five papers: what each claims, how it is run here, and what came out.

Each file of `studies/` holds a study and, behind it, what a paper claims about its runs. The folder
of a paper has the tasks that its studies need, and the analyses that no other experiment has.
Importing this package registers all of it.
"""

from spiritlevel.inputs.models import register_model

from ..claims.experiment import Experiment, Outcome
from ..pages.study_sections import register_study_sections
from ..population.registry import register_study
from .paper_000 import fig_7, table_1, table_7, tasks_dynamics
from .paper_001 import fig_1, normalized_networks, table_4, tasks_points
from .paper_002 import tasks_class_separation
from .paper_003 import tasks_networks
from .paper_004 import table, tasks_equal_time
from .registry import find, names, study_parts
from .study_section import claim_first

__all__ = [
    "Experiment",
    "Outcome",
    "find",
    "names",
]
TASKS = (  # modules whose import registers a task
    *(fig_1, fig_7, table, table_1, table_4, table_7, tasks_class_separation, tasks_dynamics),
    *(tasks_equal_time, tasks_networks, tasks_points),
)

for _part in study_parts():
    register_study(_part)
# The ids of recorded runs hold this name.
register_model(
    "spiritlevel.experiments.normalized_networks:vgg_small", normalized_networks.vgg_small
)
register_study_sections(claim_first)
