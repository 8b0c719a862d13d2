"""Populations of trained models: how they are declared, run, stored and judged."""

from .population.control import (
    execute,
    find,
    resume,
    run,
    state,
)
from .population.given.python import measure_networks
from .population.population import Population
from .population.registry import register_study, task
from .population.runs.results import RunResult
from .population.runs.tasks import task_result
from .population.settings.definition import Study
from .population.settings.run import RunSettings
from .population.settings.task_arguments import read_task
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
