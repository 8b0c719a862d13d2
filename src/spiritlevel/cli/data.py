"""`spiritlevel data`: which data sets there are, and how they get here."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from ..data import CATALOGUE, data_folder
from ..data import fetch as fetch_data
from . import console

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command(
    "list",
    epilog="""\b
Examples:
  spiritlevel data list
""",
)
def list_data() -> None:
    """List the data sets: what is in them, their size, and whether they are here."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("data", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("what")
    table.add_row("digits", "", "yes", "1,797 handwritten digits, 8×8 grey, 10 classes (embedded)")
    folder = data_folder()
    for name, entry in CATALOGUE.items():
        is_here = all((folder / name / file.name).is_file() for file in entry.files)
        text = f"{entry.summary}; {entry.origin}"
        table.add_row(name, _megabytes(entry.size), "yes" if is_here else "no", text)
    out = console.out()
    console.show(out, table)
    console.tell(out, f"Fetched data lie in {folder} (SPIRITLEVEL_DATA sets another folder).")
    console.tell(out, "Your own: --data mnist:/path, cifar10:/path, folder:/images or file.npz.")


@app.command(
    epilog="""\b
Examples:
  spiritlevel data fetch mnist
  spiritlevel data fetch cifar10 --folder /data/cifar10
  spiritlevel data fetch mnist --source http://mirror.local/mnist/
""",
)
def fetch(
    name: Annotated[str, typer.Argument(help="As `spiritlevel data list` has it.")],
    folder: Annotated[
        pathlib.Path | None, typer.Option(help="Where to, if not to where --data NAME looks.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Address of a folder with the files, instead of the public ones."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Download a data set, or go on with a download, and verify it."""
    try:
        with console.progress(f"fetching {name}") as report:
            found = fetch_data(name, folder, progress=report, sources=source)
    except KeyboardInterrupt:
        console.err().print("What came is kept: run the same again to go on.")
        raise
    entry = CATALOGUE[name]
    out = console.out()
    out.print(
        f"{name}: {len(entry.files)} file{'s' * (len(entry.files) > 1)}, "
        f"{_megabytes(entry.size)}, checksums right, in {found}",
        soft_wrap=True,
    )
    data = name if folder is None else f"{name}:{found}"
    out.print(f"use it: spiritlevel measure --model MODEL --data {data}", soft_wrap=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
