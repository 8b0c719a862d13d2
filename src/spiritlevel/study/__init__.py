"""Populations of trained models: how they are declared, run, stored and judged."""

from .control import execute, find, resume, run, state
from .definition import Study
from .results import RunResult
from .settings import RunSettings
from .store import Store
from .tasks import task_result

__all__ = [
    "RunResult",
    "RunSettings",
    "Store",
    "Study",
    "execute",
    "find",
    "resume",
    "run",
    "state",
    "task_result",
]
