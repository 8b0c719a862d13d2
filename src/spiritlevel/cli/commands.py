"""Which commands there are, and where each of them is: imported when it is used.

Other packages add commands with the entry point `spiritlevel.commands`: its name is that of the
command, and it names a function with typer's annotations or a `typer.Typer`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from ..ground import plugins
from ..ground.errors import MissingExtra, SpiritlevelError
from . import common

OWN = {
    "list": "listing:list_measures",
    "show": "listing:show",
    "measure": "measure:measure",
    "audit": "audit:audit",
    "compare": "compare:compare",
    "spectrum": "spectrum:spectrum",
    "landscape": "landscape:landscape",
    "report": "report:report",
    "quantize": "changes:quantize",
    "prune": "changes:prune",
    "check": "check:check",
    "data": "data:app",
}
OF_THE_LAB = ("study", "watch", "demo")
SETTINGS: dict[str, Any] = {
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class ByName(Mapping[str, Any]):
    """The commands as typer runs them; looking one up imports it."""

    def __getitem__(self, name: str) -> Any:
        return _built(name, _found(name))

    def __iter__(self) -> Iterator[str]:
        yield from OWN
        yield from OF_THE_LAB
        yield from (name for name in _joined() if name not in OF_THE_LAB)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def summaries() -> dict[str, str]:
    """The first sentence about each command."""
    return {name: _summary(name) for name in ByName()}


def installed() -> list[str]:
    """The names of the commands that can be run."""
    return [name for name in ByName() if name in OWN or name in _joined()]


def _summary(name: str) -> str:
    try:
        return str(ByName()[name].get_short_help_str(limit=300))
    except MissingExtra:
        return "Not installed: pip install 'spiritlevel[lab]'."
    except SpiritlevelError as error:
        return str(error)


@functools.lru_cache(maxsize=1)
def _points(found: tuple[Any, ...]) -> dict[str, Any]:
    return {point.name: point for point in found if point.name not in OWN}


def _joined() -> Mapping[str, Any]:
    """The entry points of other packages' commands, by name."""
    return _points(plugins.points("spiritlevel.commands"))


def _found(name: str) -> Any:
    if name in OWN:
        module, attribute = OWN[name].split(":")
        return getattr(importlib.import_module(f".{module}", __package__), attribute)
    if name in _joined():
        return plugins.load_point(_joined()[name])
    if name in OF_THE_LAB:
        raise MissingExtra(what=f"The command {name!r}", package="spiritlevel-lab", extra="lab")
    raise KeyError(name)


@functools.cache  # in a process that runs several commands, they get their options once
def _built(name: str, command: typer.Typer | Callable[..., Any]) -> Any:
    """The command as typer runs it, with the options that all commands have."""
    app = typer.Typer(name=name, **SETTINGS)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
        common.add_to_all(app)
        return typer.main.get_group(app).commands[name]
    app.command(name, epilog=common.examples_of(command))(command)
    common.add_to_all(app)
    return typer.main.get_command(app)
