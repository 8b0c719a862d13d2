"""Options that every command has, before or after its name: `spiritlevel list -q`.

They are added to all commands in one place, so that a new command cannot forget them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

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
    """The command with the common options in its signature, where typer looks for them."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, debug: bool, overwrite: bool, **values: Any) -> Any:
        set_volume(quiet=quiet, verbose=verbose)
        return command(**values)  # --debug and --overwrite are read where they matter

    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in signature.parameters.items()
    ]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=hint)
        for name, hint in OPTIONS.items()
    ]
    run.__annotations__ = hints | OPTIONS
    run.__signature__ = signature.replace(parameters=parameters + added)  # type: ignore[attr-defined]
    return run
