"""The commands, and how their errors reach the user."""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup

from spiritlevel_lab.commands.demo import EXAMPLES, demo
from spiritlevel_lab.commands.study import app as study
from spiritlevel_lab.commands.watch import watch

from ..ground.errors import SpiritlevelError
from ..ground.plain_text import visible
from ..records.measurements import __version__
from ..verbs import measuring as api
from . import cards, common, completion, console, options, subject
from .audit import audit
from .check import check
from .compare import compare
from .data import app as data_sets
from .exit_codes import INTERRUPTED, REFUSED, TERMINATED
from .landscape import landscape
from .measure import measure
from .prune import EXAMPLES as PRUNE_EXAMPLES
from .prune import prune
from .quantize import EXAMPLES as QUANTIZE_EXAMPLES
from .quantize import quantize
from .report import report
from .spectrum import spectrum
from .termination import INTERRUPTION, Termination


class Commands(TyperGroup):
    """All commands; a failure becomes one line on stderr and an exit code."""

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
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(data_sets, name="data")


def _show_version(wanted: bool) -> None:
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


Pattern = Annotated[
    str,
    typer.Argument(
        help="A name, or a pattern in quotes: 'head.*'.", autocompletion=completion.measures
    ),
]


@app.command(
    "list",
    epilog="""\b
Examples:
  spiritlevel list
  spiritlevel list 'relative.*'
  spiritlevel list 'sharpness.*' --json - | jq '.cards[].name'
  spiritlevel list --markdown > docs/measures.md
""",
)
def list_measures(
    pattern: Pattern = "*",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all cards as Markdown.")
    ] = False,
    json: options.Json = None,
) -> None:
    """List the measures: summary, cost, invariances."""
    chosen = api.cards(pattern)
    talk = console.talk(json)
    if markdown:
        talk.file.write(cards.markdown_page(chosen))
    else:
        cards.print_list(talk, chosen)
    subject.write_json(talk, json, cards.as_json(chosen))


@app.command(
    epilog="""\b
Examples:
  spiritlevel show relative.kappa
  spiritlevel show 'head.*'
  spiritlevel show relative.kappa --json card.json
"""
)
def show(name: Pattern, json: options.Json = None) -> None:
    """Show the card of a measure.

    Shows its formula, paper, what changes it and what does not, its cost, and when it misleads.
    """
    chosen = api.cards(name)
    talk = console.talk(json)
    for card in chosen:
        cards.print_card(talk, card)
    subject.write_json(talk, json, cards.as_json(chosen))


app.command(
    epilog="""\b
Examples:
  spiritlevel measure --model mlp
  spiritlevel measure --model my_nets:make --model-arg width=32 \\
      --checkpoint run7.safetensors --data val.npz --measures 'relative.*,head.kappa'
  spiritlevel measure --model mlp --html report.html
  spiritlevel measure --model mlp --json - | jq .measures
"""
)(measure)


app.command(
    epilog="""\b
Examples:
  spiritlevel audit --model mlp --samples 500 --html audit.html
  spiritlevel audit --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --measures 'relative.*' --measures curvature.trace
"""
)(audit)


app.command(
    epilog="""\b
Examples:
  spiritlevel compare sgd.safetensors adam.safetensors --model mlp
  spiritlevel compare early=e10.pt late=e90.pt --model my_nets:make \\
      --data train.npz --json comparison.json --html comparison.html
"""
)(compare)


app.command(
    epilog="""\b
Examples:
  spiritlevel spectrum --model mlp --samples 500
  spiritlevel spectrum --model my_nets:make --checkpoint run7.safetensors \\
      --data val.npz --num 5 --plot spectrum.png --html spectrum.html
"""
)(spectrum)


app.command(
    epilog="""\b
Examples:
  spiritlevel landscape --model mlp --checkpoint a.safetensors --plot slice.png
  spiritlevel landscape --model mlp --checkpoint a.safetensors --directions eigen \\
      --dimensions 2 --cache slice.jsonl --plot map.pdf
  spiritlevel landscape --model mlp --checkpoint a.safetensors --to b.safetensors \\
      --plot between.svg --json between.json
"""
)(landscape)


app.command(
    epilog="""\b
Examples:
  spiritlevel measure --model mlp --json measured.json
  spiritlevel report measured.json
  spiritlevel report comparison.json --out comparison.html --title 'SGD and Adam'
  spiritlevel report studies/digits-quick --out study.html
"""
)(report)


app.command(epilog=QUANTIZE_EXAMPLES)(quantize)


app.command(epilog=PRUNE_EXAMPLES)(prune)


app.add_typer(study, name="study")


app.command(
    epilog="""\b
Examples:
  spiritlevel watch studies/digits-quick
  spiritlevel watch run.jsonl --open
"""
)(watch)


app.command(
    epilog="""\b
Examples:
  spiritlevel check
  spiritlevel check --json src/spiritlevel/cli/reference.json --overwrite
  spiritlevel check --markdown > docs/reference-values.md
"""
)(check)


app.command(epilog=EXAMPLES)(demo)


common.add_to_all(app)
