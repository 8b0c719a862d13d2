"""`spiritlevel data`: list and download data sets."""

from __future__ import annotations

import json as json_text
import pathlib
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from . import completion, console, options, outputs

FORMAT = "spiritlevel-data-1"
EMBEDDED = "1,797 handwritten digits, 8×8 grey, 10 classes (embedded)"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and download public data sets.",
    epilog="""\b
Examples:
  spiritlevel data list
  spiritlevel data fetch mnist
""",
)


@app.command(
    "list",
    epilog="""\b
Examples:
  spiritlevel data list
  spiritlevel data list --json - | jq '.data[].name'
""",
)
def list_data(json: options.Json = None) -> None:
    """List the data sets with their size, and whether they are on this machine."""
    from ..inputs.data.catalogue import CATALOGUE, data_folder

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column("data", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("fetched", no_wrap=True)
    table.add_column("what")
    folder = data_folder()
    rows: list[dict[str, Any]] = [{"name": "digits", "bytes": 0, "here": True, "what": EMBEDDED}]
    for name, entry in CATALOGUE.items():
        is_here = all((folder / name / file.name).is_file() for file in entry.files)
        text = f"{entry.summary}; {entry.origin}"
        rows.append({"name": name, "bytes": entry.size, "here": is_here, "what": text})
    for row in rows:
        size = _megabytes(row["bytes"]) if row["bytes"] else ""
        table.add_row(row["name"], size, "yes" if row["here"] else "no", row["what"])
    talk = console.talk(json)
    console.show(talk, table)
    console.note(
        talk, f"Fetched data are in {folder} (set SPIRITLEVEL_DATA to use another folder)."
    )
    console.note(
        talk, "Your own data: --data mnist:/path, cifar10:/path, folder:/images or file.npz."
    )
    listing = {"format": FORMAT, "folder": str(folder), "data": rows}
    outputs.write_json(talk, json, json_text.dumps(listing, indent=2))


@app.command(
    epilog="""\b
Examples:
  spiritlevel data fetch mnist
  spiritlevel data fetch cifar10 --folder /data/cifar10
  spiritlevel data fetch mnist --source http://mirror.local/mnist/
""",
)
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="A name that `spiritlevel data list` shows.", autocompletion=completion.fetchable
        ),
    ],
    folder: Annotated[
        pathlib.Path | None, typer.Option(help="Target folder (default: where --data NAME looks).")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="URL of a folder with the files, instead of the public ones."),
    ] = None,
    json: options.Json = None,
) -> None:
    """Download a data set, or continue a download, and verify it."""
    from ..inputs import data as data_sets

    try:
        with console.progress(f"fetching {name}") as report:
            target = data_sets.fetch(name, folder, progress=report, sources=source)
    except KeyboardInterrupt:
        console.err().print("The partial download is kept. Run the same command again to continue.")
        raise
    entry = data_sets.CATALOGUE[name]
    talk = console.talk(json)
    talk.print(
        f"{name}: {len(entry.files)} file{'s' * (len(entry.files) > 1)}, "
        f"{_megabytes(entry.size)}, checksums verified, in {target}",
        soft_wrap=True,
    )
    data = name if folder is None else f"{name}:{target}"
    if console.VOLUME.get() > console.Volume.QUIET:
        talk.print(f"use it: spiritlevel measure --model MODEL --data {data}", soft_wrap=True)
    files = [str(target / file.name) for file in entry.files]
    result = {"format": FORMAT, "name": name, "folder": str(target), "files": files}
    outputs.write_json(talk, json, json_text.dumps(result, indent=2))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
