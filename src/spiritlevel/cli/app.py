"""The commands, and how their errors reach the user."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from textwrap import shorten
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..ground.errors import SpiritlevelError
from ..ground.plain_text import visible
from ..ground.version import __version__
from . import common, console
from .commands import SETTINGS, ByName, installed, summaries
from .termination import INTERRUPTED, INTERRUPTION, REFUSED, TERMINATED, Termination


class Commands(TyperGroup):
    """All commands; a failure becomes one line on stderr and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = ByName()

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, without importing them."""
        return installed()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A line for each, those that are not installed with what installs them."""
        known = summaries()
        room = formatter.width - 6 - max(map(len, known))
        rows = [(name, shorten(known[name], room, placeholder="...")) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; it is done as well once `| head` has read what it wanted."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return result

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command and exit with its code; the installed command and tests both come here."""
        args = list(sys.argv[1:] if args is None else args)
        options = {"prog_name": "spiritlevel"} | options | {"standalone_mode": False}
        before = console.VOLUME.set(console.Volume.NORMAL)
        termination = Termination()
        try:
            with termination:
                code = super().main(args, *rest, **options)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            code = _report_error(error, debug="--debug" in args)
        finally:
            console.VOLUME.reset(before)
        if code == INTERRUPTED:
            console.say_error(INTERRUPTION)
            code = TERMINATED if termination.came else code
        sys.exit(code if isinstance(code, int) else 0)


def _report_error(error: Exception, *, debug: bool) -> int:
    """Print the error on stderr and return its exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # of newer click; older ones show it and exit
        sys.stdout.write(f"{error.format_message()}\n")  # type: ignore[attr-defined]
        return 0
    if debug:
        sys.stderr.write(visible(traceback.format_exc(), keep="\n"))
    console.say_error(_explain(error))
    return int(getattr(error, "exit_code", REFUSED))


def _explain(error: Exception) -> str:
    """One line: what was wrong and what to do."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # the command line itself was wrong
        context = getattr(error, "ctx", None)
        command = "spiritlevel" if context is None else context.command_path
        text = format_message()
        return f"{text}{'' if text.endswith(('.', '?')) else '.'} See `{command} --help`."
    if isinstance(error, SpiritlevelError):
        return str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.strerror}: {error.filename!r:.200}. Check the path and its permissions."
    return f"{type(error).__name__}: {error}. Run it again with --debug for the traceback."


app = typer.Typer(
    name="spiritlevel",
    cls=Commands,
    no_args_is_help=True,
    **SETTINGS | {"add_completion": True},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        torch = metadata.version("torch")  # without importing it
        console.out().print(
            f"spiritlevel {__version__} (torch {torch}, Python {platform.python_version()})"
        )
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  spiritlevel list
  spiritlevel show relative.kappa
  spiritlevel measure --model mlp --data digits
  spiritlevel demo
  spiritlevel --install-completion

\b
Exit codes:
  0    done
  1    failed; the line after "error:" says why and what to do next
  2    the command line was not understood
  130  interrupted with Ctrl-C

Colours are used on a terminal only, and not if NO_COLOR is set.
"""
)
def spiritlevel(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    quiet: common.Quiet = False,
    verbose: common.Verbose = False,
    debug: common.Debug = False,
) -> None:
    """Measure how flat a neural network's minimum is."""
    common.set_volume(quiet=quiet, verbose=verbose)
