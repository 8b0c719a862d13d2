"""The experiments of the five papers: what each claims, how it is run here, and what came out.

Each file of `studies/` holds a study and, behind it, what a paper claims about its runs. The folder
of a paper has the tasks that its studies need, and the analyses that no other experiment has.
Importing this package registers all of it.
"""

from ..pages.study_sections import register_study_sections
from ..study.models import register_model
from ..study.registry import register_study
from .judging.experiment import Experiment, Outcome
from .paper_000 import tasks_dynamics, tasks_stopping, tasks_trace, tasks_transfer
from .paper_001 import normalized_networks, tasks_noise_finetuning, tasks_points, tasks_scaling
from .paper_002 import tasks_class_separation
from .paper_003 import tasks_networks
from .paper_004 import tasks_equal_time, tasks_flatness_penalty
from .records import Record, record
from .registry import find, names, study_parts
from .study_section import claim_first

__all__ = [
    "Experiment",
    "Outcome",
    "Record",
    "find",
    "names",
    "record",
]
TASKS = (  # modules whose import registers a task
    tasks_class_separation,
    tasks_dynamics,
    tasks_equal_time,
    tasks_flatness_penalty,
    tasks_networks,
    tasks_noise_finetuning,
    tasks_points,
    tasks_scaling,
    tasks_stopping,
    tasks_trace,
    tasks_transfer,
)

for _part in study_parts():
    register_study(_part)
# The ids of recorded runs hold this name.
register_model(
    "spiritlevel.experiments.normalized_networks:vgg_small", normalized_networks.vgg_small
)
register_study_sections(claim_first)
