"""The demo on the terminal."""

from __future__ import annotations

import pathlib

from rich import box
from rich.table import Table

from .. import demo as library
from ..demo.networks import HIDDEN, SGD
from ..demo.page import setting
from ..demo.result import SHOWN, Demo, file_name
from ..demo.words import findings, limits
from . import console


def run(*, seed: int, quick: bool) -> Demo:
    """The demo behind a progress bar."""
    with console.progress("demo") as show:
        return library.run(seed=seed, quick=quick, progress=show)


def print_result(demo: Demo, *, out: pathlib.Path, seconds: float) -> None:
    """Table, what it shows, what it does not, and where everything is."""
    page = console.out()
    console.tell(page, setting(demo))
    page.print()
    console.show(page, _networks(demo))
    console.tell(page, f"Measures: {', '.join(SHOWN)}.")
    page.print("\n[bold]What it shows[/bold]")
    for heading, text in findings(demo).items():
        console.tell(page, text, mark="  • ", bold=f"{heading}. ")
    page.print("\nKendall's τ of the measures with the gap (1: same order, −1: opposite order)")
    console.show(page, _agreement(demo))
    page.print("\n[bold]What it does not show[/bold]")
    for text in limits(demo):
        console.tell(page, text, mark="  • ")
    page.print()
    console.tell(
        page,
        f"Look at {out / 'picture.png'} and read {out / 'report.html'}; all numbers are in "
        f"{out / 'demo.json'}, the networks in {out / 'networks'}. It took {seconds:.0f} s. "
        "To measure one of the networks yourself:",
    )
    page.print(
        f"  spiritlevel measure --model mlp --option hidden={','.join(map(str, HIDDEN))} \\\n"
        f"      --checkpoint {out / 'networks' / file_name(SGD)} --per-layer",
        markup=False,
        soft_wrap=True,
    )


def _agreement(demo: Demo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("measure", no_wrap=True)
    groups = demo.groups()
    for group in groups:
        table.add_column(group, justify="right")
    for measure in SHOWN:
        table.add_row(measure, *(str(demo.agreement(measure, names)) for names in groups.values()))
    return table


def _networks(demo: Demo) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("network", no_wrap=True)
    for heading in ("train\nloss", "test\nacc.", "gap", *(m.partition(".")[2] for m in SHOWN)):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, t in demo.trained.items():
        table.add_row(
            name,
            f"{t.train_loss:.2g}",
            f"{t.test_accuracy:.1%}",
            f"{t.gap:.2f} ± {t.test_loss_stderr:.2f}",
            *(f"{demo.reports[name][m].value:.3g}" for m in SHOWN),
        )
    return table
