"""`spiritlevel watch`: a local page that follows what is running."""

from __future__ import annotations

import pathlib
import webbrowser
from typing import Annotated

import typer

from ..pages.watch import Watched, open_server
from . import console, subject


def watch(
    path: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="DIR",
            help="The folder of a study, or with a monitor's .jsonl or .csv; or such a file.",
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any; without it the first free one from 8765 on."),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Show the page in the browser.")
    ] = False,
    json: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The state of now as JSON, and no page; '-' is stdout."),
    ] = None,
) -> None:
    """Follow a running study or monitor on a local page.

    The page is for this machine only. It reads and never writes, and what is not there yet appears
    when it is. Ctrl-C ends it.
    """
    watched = Watched(path)
    talk = console.talk(json)
    if json is not None:
        subject.write_json(talk, json, watched.answer().decode())
        return
    server = open_server(watched, port)
    try:
        talk.print(f"Watching {watched.path} at {server.address}", markup=False, soft_wrap=True)
        console.note(talk, watched.state()["waiting"] or "Ctrl-C ends it.")
        if open_browser:
            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        console.note(talk, "Ended. What was watched goes on.")
    finally:
        server.server_close()
