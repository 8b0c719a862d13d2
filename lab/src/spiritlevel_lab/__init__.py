"""Populations of trained networks, and what flatness says about how they generalize.

    import spiritlevel_lab as lab

    with lab.run(lab.find("digits"), "my-study", preset="quick") as store:
        population = lab.Population.of(store)

Statistics of any columns are in `lab.statistics`, pages and figures of studies in `lab.pages`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from spiritlevel.ground.lazy import lazy as _lazy
from spiritlevel.ground.version import __version__ as __version__

if _TYPE_CHECKING:
    from .population.control import execute as execute
    from .population.control import find as find
    from .population.control import resume as resume
    from .population.control import run as run
    from .population.control import state as state
    from .population.existing.python import measure_networks as measure_networks
    from .population.population import Population as Population
    from .population.registry import read_task as read_task
    from .population.registry import register_study as register_study
    from .population.registry import task as task
    from .population.run_results import RunResult as RunResult
    from .population.runs.tasks import task_result as task_result
    from .population.settings.definition import Study as Study
    from .population.settings.run import RunSettings as RunSettings
    from .population.storage.store import Store as Store

_NAMES = {
    ".population.control": "execute find resume run state",
    ".population.existing.python": "measure_networks",
    ".population.population": "Population",
    ".population.registry": "read_task register_study task",
    ".population.run_results": "RunResult",
    ".population.runs.tasks": "task_result",
    ".population.settings.definition": "Study",
    ".population.settings.run": "RunSettings",
    ".population.storage.store": "Store",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
_ROOMS = ("claims", "pages", "papers", "population", "statistics")
__getattr__, __dir__ = _lazy(__name__, _HOMES, _ROOMS)
