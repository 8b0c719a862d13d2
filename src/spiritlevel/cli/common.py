"""Options that every command has, before or after its name: `spiritlevel list -q`.

They are added to all commands in one place, so that a new command cannot forget them. There the
groups of options that a command takes are unfolded too.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from . import console
from .console import Volume

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print settings, costs and times too.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace files that exist.",
        is_eager=True,  # read before the options that name files
        callback=console.allow_overwriting,
    ),
]
OPTIONS = {"quiet": Quiet, "verbose": Verbose, "debug": Debug, "overwrite": Overwrite}


AnyCommand = TypeVar("AnyCommand", bound=Callable[..., Any])


def examples(text: str) -> Callable[[AnyCommand], AnyCommand]:
    """Decorate a command with the examples that its help ends with."""

    def keep(command: AnyCommand) -> AnyCommand:
        _EXAMPLES[command] = text
        return command

    return keep


_EXAMPLES: dict[Callable[..., Any], str] = {}


def examples_of(command: Callable[..., Any]) -> str | None:
    """What the help of this command ends with; None where it has no examples."""
    return _EXAMPLES.get(command)


def set_volume(*, quiet: bool, verbose: bool) -> None:
    """Set the volume for this command; options before its name still count."""
    if quiet or verbose:
        before = console.VOLUME.get()
        wanted = {
            Volume.QUIET: quiet or before is Volume.QUIET,
            Volume.VERBOSE: verbose or before is Volume.VERBOSE,
        }
        if all(wanted.values()):
            raise typer.BadParameter("--quiet and --verbose exclude each other. Give only one.")
        console.VOLUME.set(Volume.QUIET if quiet else Volume.VERBOSE)


def add_to_all(app: typer.Typer) -> None:
    """Give every command below `app` the common options."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_to_all(group.typer_instance)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with all of its options in its signature, where typer looks for them."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in _typed(command).items():
        group = parameter.annotation
        if isinstance(group, type) and dataclasses.is_dataclass(group):
            groups[name] = group
            parameters += _typed(group).values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, debug: bool, overwrite: bool, **values: Any) -> Any:
        set_volume(quiet=quiet, verbose=verbose)
        for name, group in groups.items():
            options = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{option: values.pop(option) for option in options})
        return command(**values)  # --debug and --overwrite are read where they matter

    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        for name, hint in OPTIONS.items()
    ]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _typed(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Its parameters by name, with annotations that are no texts."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }
