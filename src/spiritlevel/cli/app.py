"""The commands, and how every failure of theirs is answered."""

from __future__ import annotations

import pathlib
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup

from .. import api
from .._core import SpiritlevelError, __version__
from ..checkpoints import write_atomically
from . import cards, console, demo
from .audit import audit
from .compare import compare
from .data import app as data_sets
from .measure import measure
from .spectrum import spectrum
from .study import app as study

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Commands(TyperGroup):
    """All commands; a failure becomes one line on stderr and exit code 2."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run, answer, and exit: for the installed command and for tests alike."""
        args = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args, *rest, **options | {"standalone_mode": False})
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            if "--debug" in args:
                traceback.print_exc()
            console.say_error(_explain(error))
            code = 2
        if code == INTERRUPTED:
            console.say_error("interrupted. Nothing was written that is not complete.")
        sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> str:
    """One line: what was wrong and what to do."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # the command line itself was wrong
        context = getattr(error, "ctx", None)
        command = "spiritlevel" if context is None else context.command_path
        return f"{format_message()} See `{command} --help`."
    if isinstance(error, SpiritlevelError):
        return str(error)
    return f"{type(error).__name__}: {error}. Run it again with --debug for the traceback."


app = typer.Typer(
    name="spiritlevel",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(data_sets, name="data", help="Public data sets: list and fetch them.")


def _say_version(wanted: bool) -> None:
    if wanted:
        console.out().print(
            f"spiritlevel {__version__} "
            f"(torch {torch.__version__}, Python {platform.python_version()})"
        )
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  spiritlevel list
  spiritlevel show relative.kappa
  spiritlevel measure --model mlp --data digits
  spiritlevel demo
"""
)
def spiritlevel(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say it and exit."),
    ] = False,
) -> None:
    """Measure how flat a neural network's minimum is."""


@app.command(
    "list",
    epilog="""\b
Examples:
  spiritlevel list
  spiritlevel list 'relative.*'
  spiritlevel list --markdown > docs/measures.md
""",
)
def list_measures(
    pattern: Annotated[str, typer.Argument(help="Names or wildcards, quoted: 'head.*'.")] = "*",
    markdown: Annotated[bool, typer.Option("--markdown", help="All cards as Markdown.")] = False,
) -> None:
    """List the measures: summary, cost, invariances."""
    chosen = api.measures(pattern)
    if markdown:
        sys.stdout.write(cards.markdown_page(chosen))
    else:
        cards.print_list(chosen)


@app.command(
    epilog="""\b
Examples:
  spiritlevel show relative.kappa
  spiritlevel show 'head.*'
"""
)
def show(
    name: Annotated[str, typer.Argument(help="A measure, or a pattern: 'head.*'.")],
) -> None:
    """Show the card of a measure.

    Formula, paper, what leaves it unchanged and what moves it, cost, and when it misleads.
    """
    for card in api.measures(name):
        cards.print_card(card)


app.command(
    epilog="""\b
Examples:
  spiritlevel measure --model mlp
  spiritlevel measure --model my_nets:make --option width=32 \\
      --checkpoint run7.safetensors --data val.npz --measures 'relative.*'
  spiritlevel measure --model mlp --json - | jq .measures
"""
)(measure)


app.command(
    epilog="""\b
Examples:
  spiritlevel audit --model mlp --samples 500
  spiritlevel audit --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --measures 'relative.*' --measures curvature.trace
"""
)(audit)


app.command(
    epilog="""\b
Examples:
  spiritlevel compare sgd.safetensors adam.safetensors --model mlp
  spiritlevel compare early=e10.pt late=e90.pt --model my_nets:make \\
      --data train.npz --json comparison.json
"""
)(compare)


app.command(
    epilog="""\b
Examples:
  spiritlevel spectrum --model mlp --samples 500
  spiritlevel spectrum --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --num 5 --plot spectrum.png
"""
)(spectrum)


app.add_typer(study, name="study")


@app.command(
    "demo",
    epilog="""\b
Examples:
  spiritlevel demo
  spiritlevel demo --out my-demo --seed 3
""",
)
def run_demo(
    out: Annotated[
        pathlib.Path, typer.Option("--out", help="The folder to write to.")
    ] = pathlib.Path("spiritlevel-demo"),
    seed: Annotated[int, typer.Option(help="Of weights, batches and label noise.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train little: a look at the form, not at minima.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Train, measure and compare small networks.

    Seven networks on handwritten digits; a table, a picture, and plain words on what it shows and
    what it does not. Under two minutes on two cores.
    """
    started = time.monotonic()
    result = demo.run(seed=seed, quick=quick)
    for name, data in result.files().items():
        write_atomically(out / name, data)
    demo.print_result(result, out=out, seconds=time.monotonic() - started)
