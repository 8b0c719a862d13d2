"""Which commands there are, and where each of them is: imported when it is used.

Other packages add commands with the entry point `spiritlevel.commands`: its name is that of the
command, and it names a function with typer's annotations or a `typer.Typer`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer

from ..ground import plugins
from ..ground.errors import MissingExtra
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
INDEX = "completion.json"  # beside the commands: what shells are offered, and a line of help
UNKNOWN: dict[str, Any] = {"help": "", "parameters": [], "commands": {}}  # without such a file
NOT_INSTALLED = UNKNOWN | {"help": "Not installed: pip install 'spiritlevel[lab]'."}
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
    """The first sentence about each command, without importing them."""
    return {name: below["help"] for name, below in index()["commands"].items()}


def index() -> dict[str, Any]:
    """What the files say about all commands."""
    tree: dict[str, Any] = json.loads(index_file(__name__).read_text("utf-8"))
    for name in (*OF_THE_LAB, *_joined()):
        tree["commands"].setdefault(name, _of_another(name))
    return tree


def _of_another(name: str) -> dict[str, Any]:
    """What is known of a command that another package brings."""
    point = _joined().get(name)
    if point is None:
        return NOT_INSTALLED
    file = index_file(point.module)
    known = json.loads(file.read_text("utf-8"))["commands"] if file.is_file() else {}
    return dict(known.get(name, UNKNOWN))


def index_file(module: str) -> pathlib.Path:
    """Where the package of a command says what shells are offered."""
    spec = importlib.util.find_spec(module)
    return pathlib.Path(spec.origin if spec and spec.origin else ".").with_name(INDEX)


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
