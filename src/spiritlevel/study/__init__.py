"""Populations of trained models: how they are declared, run, stored and judged."""

from .control import execute, find, resume, run, state
from .existing.python import measure_networks
from .population import Population
from .registry import read_task, register_study, task
from .run_results import RunResult
from .runs.tasks import task_result
from .settings.definition import Study
from .settings.run import RunSettings
from .storage.store import Store

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
