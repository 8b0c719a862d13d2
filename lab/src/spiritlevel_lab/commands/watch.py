"""`spiritlevel watch`: a local page that follows what is running."""

from __future__ import annotations

import pathlib
import webbrowser
from typing import Annotated

import typer

from spiritlevel.cli import console, outputs
from spiritlevel.cli.common import examples


@examples("""\b
Examples:
  spiritlevel watch studies/digits-quick
  spiritlevel watch run.jsonl --open
""")
def watch(
    path: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="DIR",
            help="A study's folder, a folder with a monitor's .jsonl or .csv file, or such a file.",
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="0 for any free port (default: the first free one from 8765)."
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Print the current state as JSON instead; '-' for stdout."
        ),
    ] = None,
) -> None:
    """Follow a running study or monitor on a local page.

    The page is only reachable from this machine. It never writes, and updates by itself. Stop it
    with Ctrl-C.
    """
    from ..pages.watch import Watched, open_server

    watched = Watched(path)
    talk = console.talk(json)
    if json is not None:
        outputs.write_json(talk, json, watched.answer().decode())
        return
    server = open_server(watched, port)
    try:
        talk.print(f"Watching {watched.path} at {server.address}", soft_wrap=True)
        console.note(talk, watched.state()["waiting"] or "Stop with Ctrl-C.")
        if open_browser:
            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        console.note(talk, "Stopped watching. The study or monitor continues.")
    finally:
        server.server_close()
