"""Studies, tasks and code by name: of this package, of other packages, and of a user's modules.

    from spiritlevel_lab import register_study, task

    register_study(importlib.resources.files("my_package") / "my-study.yaml")

    @task("my_task")
    def separate(settings, device):
        ...

A package whose modules do this names them under the entry point `spiritlevel.studies`.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, Protocol, TypeVar

from torch import nn

from spiritlevel.ground import plugins, user_code
from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.need import need
from spiritlevel.inputs.models.registry import find_factory, is_registered
from spiritlevel.training.penalties.penalty import Penalty

from .run_results import RunResult
from .settings.keys import check_keys, must_be
from .settings.run import RunSettings

Task = Callable[[RunSettings, Any], RunResult]
SECTIONS = ("model", "data")  # of a study, which a task may have no use for
SUFFIX = ".yaml"
HERE = __name__.partition(".")[0]
OWN = ("spiritlevel", HERE)  # packages whose code is known


class StudyFile(Protocol):
    """A path, or a resource of a package."""

    @property
    def name(self) -> str:
        """The file name, with its suffix."""
        ...

    def read_text(self, encoding: str | None = None) -> str:
        """The content of the file."""
        ...


@dataclasses.dataclass(frozen=True)
class RegisteredTask:
    """A task, which sections of a study it looks at, and the dataclass of its arguments."""

    function: Task
    uses: tuple[str, ...]
    arguments: type | None = None


_studies: dict[str, StudyFile] = {}
_tasks: dict[str, RegisteredTask] = {}


def register_study(file: StudyFile | str) -> None:
    """Make a study available under the name of its file, without `.yaml`."""
    if isinstance(file, str):
        file = pathlib.Path(file)
    need(
        *("file", file, lambda found: isinstance(getattr(found, "name", None), str)),
        "a path or a resource of a package",
        "Pass for example 'my-study.yaml'.",
        of="register_study",
        typed=True,
    )
    if not file.name.endswith(SUFFIX):
        raise SpiritlevelError(
            f"The 'file' argument of register_study must end in {SUFFIX!r}. Got "
            f"{brief(file.name)}. Rename the file; its name becomes the name of the study."
        )
    name = file.name.removesuffix(SUFFIX)
    if _studies.get(name, file) != file:
        raise SpiritlevelError(
            f"The study {name!r} is registered twice: {_studies[name]} and {file}. Rename one."
        )
    _studies[name] = file


def study_names() -> list[str]:
    """Names of the registered studies."""
    return sorted(_all_studies())


def study_text(name: str) -> str:
    """The YAML of a registered study."""
    return _all_studies()[name].read_text(encoding="utf-8")


def task(
    name: str, *, uses: tuple[str, ...] = SECTIONS, arguments: type | None = None
) -> Callable[[Task], Task]:
    """Register a function (settings, device) -> RunResult that studies name as their task.

    Args:
        name: what a study writes under `task`.
        uses: of "model" and "data", the sections that the task looks at.
        arguments: a dataclass with defaults. A study whose arguments for the task do not fit it is
            refused before its first run; `read_task` gives them to the task.
    """

    def add(function: Task) -> Task:
        registered = _tasks.get(name)
        if registered is not None and registered.function is not function:
            raise SpiritlevelError(
                f"The task {name!r} is registered twice: by {registered.function.__module__} and "
                f"{function.__module__}. Rename one."
            )
        _tasks[name] = RegisteredTask(function, uses, arguments)
        return function

    return add


def registered_task(name: str) -> RegisteredTask | None:
    """The task that is registered under this name, or None."""
    plugins.load("spiritlevel.studies")
    return _tasks.get(name)


def find_task(name: str) -> Task:
    """The function of a registered task, or that of "module:function"."""
    if ":" not in name:
        registered = registered_task(name)
        if registered is None:
            raise SpiritlevelError(
                f"The study's task {name!r} must be 'module:function' or one of "
                f"{', '.join(sorted(_tasks))}.{suggestion(name, _tasks)} Run from the folder that "
                "holds the module."
            )
        return registered.function
    function = user_code.imported(name, what="task")
    if not callable(function):
        raise SpiritlevelError(
            f"The study's task {name!r} must name a function (settings, device) -> RunResult. "
            f"Got {brief(function)}."
        )
    user_function: Task = function
    return user_function


def _all_studies() -> dict[str, StudyFile]:
    plugins.load("spiritlevel.studies")
    library = resources.files(f"{__package__}.library").iterdir()
    return {f.name.removesuffix(SUFFIX): f for f in library if f.name.endswith(SUFFIX)} | _studies


def is_own(spec: str) -> bool:
    """Whether a network comes with one of our packages, under a name or as "module:function".

    What another package registers is not ours: nobody knows what its code does.

    >>> is_own("lenet5"), is_own("their_networks:make")
    (True, False)
    """
    if is_registered(spec):
        module = getattr(find_factory(spec), "__module__", None) or ""
    else:
        module, _, _ = spec.rpartition(":")
    return module.partition(".")[0] in OWN


BASES: dict[str, type | None] = {"model": nn.Module, "task": None, "penalty": Penalty}


def check_code(
    runs: Iterable[RunSettings], *, allow_code: bool, received: pathlib.Path | None = None
) -> None:
    """Refuse runs that name code of unknown origin, before any of it is imported.

    Args:
        runs: whose settings may come from a file of somebody else.
        allow_code: the user said that they trust the study.
        received: the study's file or the store's folder, which may have come with code.
    """
    if allow_code:
        return
    for what, name in dict.fromkeys(pair for run in runs for pair in _named(run)):
        user_code.check_origin(name, what=what, base=BASES[what], own=HERE, received=received)


def _named(run: RunSettings) -> list[tuple[str, str]]:
    """Roles and names that have to be imported from a user's module."""
    names = []
    if not is_registered(run.model.name):
        names.append(("model", run.model.name))
    if run.task is not None:
        names.append(("task", run.task.name))
    if run.training.penalty is not None:
        names.append(("penalty", run.training.penalty.name))
    return [(what, name) for what, name in names if ":" in name]


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class NoArguments:
    """For a task whose study says everything in its other sections."""


def read_task(settings: RunSettings, arguments: type[T]) -> T:
    """The arguments of the study's `task`; each must be of the same type as its default."""
    given = settings.task.arguments if settings.task is not None else {}
    fields = {field.name: field.default for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]
    check_keys("task", given, fields)
    return arguments(**{key: _read(key, value, fields[key]) for key, value in given.items()})


def _read(key: str, value: Any, default: Any) -> Any:
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    needs = {int: "a whole number", float: "a number", str: "a text"}
    fits = isinstance(value, kind) and not isinstance(value, bool)
    must_be(fits, f"task.{key}", value, needs.get(kind, ""), f"Usual: {default!r}.")
    return value
