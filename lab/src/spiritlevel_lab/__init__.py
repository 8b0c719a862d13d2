"""Populations of trained models: how they are declared, run, stored and judged."""

from .population.control import execute, find, resume, run, state
from .population.existing.python import measure_networks
from .population.population import Population
from .population.registry import read_task, register_study, task
from .population.run_results import RunResult
from .population.runs.tasks import task_result
from .population.settings.definition import Study
from .population.settings.run import RunSettings
from .population.storage.store import Store

__all__ = [
    "Population",
    "RunResult",
    "RunSettings",
    "Store",
    "Study",
    "execute",
    "find",
    "measure_networks",
    "read_task",
    "register_study",
    "resume",
    "run",
    "state",
    "task",
    "task_result",
]
