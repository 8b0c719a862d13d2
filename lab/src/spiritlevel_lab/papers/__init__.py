"""The experiments of the five papers: what each claims, how it is run here, and what came out.

Each file `paper_…/fig_…` or `paper_…/table_…` holds one; its study is in `studies/`. The tasks
beside them do what a study does not do by itself. Importing this package registers all of it.
"""

from importlib import resources

from spiritlevel.inputs.models import register_model

from ..pages.study_sections import register_study_sections
from ..population.registry import register_study
from .experiment import Experiment, Outcome
from .paper_000 import (
    tasks_dynamics,
    tasks_stopping,
    tasks_trace,
    tasks_transfer,
)
from .paper_001 import (
    normalized_networks,
    tasks_noise_finetuning,
    tasks_points,
    tasks_scaling,
)
from .paper_002 import tasks_class_separation
from .paper_003 import tasks_networks
from .paper_004 import tasks_equal_time, tasks_flatness_penalty
from .publishing.pages import pages, write_pages
from .publishing.records import Record, record
from .publishing.render import ScaleResult, render
from .publishing.study_section import claim_first
from .registry import find, names

__all__ = [
    "Experiment",
    "Outcome",
    "Record",
    "ScaleResult",
    "find",
    "names",
    "pages",
    "record",
    "render",
    "write_pages",
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

for _file in (resources.files(__package__) / "studies").iterdir():
    register_study(_file)
# The ids of recorded runs hold this name.
register_model(
    "spiritlevel.experiments.normalized_networks:vgg_small", normalized_networks.vgg_small
)
register_study_sections(claim_first)
