"""`spiritlevel study`: run a population of networks, continue it, look at it, judge it."""

from __future__ import annotations

import contextlib
import json as json_text
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import study as library
from .._core import SpiritlevelError
from ..study import control, export, table
from ..study.executors.local import Watch
from ..study.store import Counts, Store
from . import console, inputs, subject

app = typer.Typer(
    name="study",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a population of networks, measure them, and see what the measures say.",
)
Folder = Annotated[pathlib.Path, typer.Argument(help="The folder of the study.")]
Executor = Annotated[
    str, typer.Option(help="local, vmap (networks of one shape together) or ray (a cluster).")
]
Workers = Annotated[int, typer.Option(min=1, help="Processes; with ray, CPUs of its own cluster.")]
Address = Annotated[
    str | None, typer.Option(help="Of the Ray cluster; without it one is started here.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command(
    epilog="""\b
Examples:
  spiritlevel study run digits --preset quick --workers 2
  spiritlevel study run my_study.yaml --out runs/mine --executor vmap
"""
)
def run(
    study: Annotated[str, typer.Argument(help="A .yaml or .py file, or a study by name: digits.")],
    preset: Annotated[str | None, typer.Option(help="One of the study's presets: quick.")] = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="The folder; studies/NAME-PRESET without it.")
    ] = None,
    executor: Executor = "local",
    workers: Workers = 1,
    address: Address = None,
    device: Device = "cpu",
    debug: subject.Debug = False,
) -> None:
    """Run a study, or what is left of it. It may be stopped at any moment and continued."""
    chosen = control.find(study)
    if preset is not None:
        chosen = chosen.with_preset(preset)
    control.check(chosen)
    folder = out or pathlib.Path("studies") / "-".join(filter(None, (chosen.name, preset)))
    with Store.create(folder, chosen) as store:
        _work(store, executor=executor, workers=workers, address=address, device=device)


@app.command(
    epilog="""\b
Examples:
  spiritlevel study resume studies/digits-quick --workers 2
"""
)
def resume(
    folder: Folder,
    executor: Executor = "local",
    workers: Workers = 1,
    address: Address = None,
    device: Device = "cpu",
    debug: subject.Debug = False,
) -> None:
    """Do what is left of a study; runs that failed are tried again."""
    with Store.open(folder) as store:
        if again := store.retry_failed():
            console.err().print(f"{again} failed runs are tried again")
        _work(store, executor=executor, workers=workers, address=address, device=device)


@app.command(
    epilog="""\b
Examples:
  spiritlevel study status studies/digits-quick
"""
)
def status(folder: Folder, json: Json = False, debug: subject.Debug = False) -> None:
    """Say how far a study is."""
    with Store.open(folder) as store:
        state = library.state(store)
    if json:
        sys.stdout.write(json_text.dumps(state.to_dict(), indent=2) + "\n")
        return
    page = console.out()
    page.print(f"{state.name}: {_words(state.counts, state.seconds_left)}", soft_wrap=True)
    for run_id, error in state.failures:
        console.tell(page, error, mark="  • ", bold=f"{run_id} ")


@app.command(
    epilog="""\b
Examples:
  spiritlevel study report studies/digits-quick
  spiritlevel study report studies/digits-quick --target error_gap --json
"""
)
def report(
    folder: Folder,
    target: Annotated[str, typer.Option(help=f"{', '.join(table.TARGETS)}.")] = "gap",
    resamples: Annotated[int, typer.Option(min=0, help="Of the bootstrap; 0: none.")] = 2000,
    json: Json = False,
    debug: subject.Debug = False,
) -> None:
    """Say what each measure tells about the generalization gap, and how surely."""
    with Store.open(folder) as store:
        found = table.statistics(store, target=target, resamples=resamples)
        counts = store.counts()
        study = store.study
    if json:
        sys.stdout.write(found.to_json() + "\n")
        return
    heading = f"{study.name}: what the measures say about the {target.replace('_', ' ')}"
    left = f"\n{counts.remaining} runs are not finished: this is not the whole study."
    sys.stdout.write(
        f"{heading} ({table.TARGETS[target]})\n\n{found}\n{left if counts.remaining else ''}"
    )


@app.command(
    "export",
    epilog="""\b
Examples:
  spiritlevel study export studies/digits-quick --out tables
  spiritlevel study export studies/digits-quick --format parquet
""",
)
def export_tables(
    folder: Folder,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Where to; FOLDER/export without it.")
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    debug: subject.Debug = False,
) -> None:
    """Write runs, epochs and measurements as tables."""
    with Store.open(folder) as store:
        for path in export.export(store, out or folder / "export", kind=kind):
            console.tell(console.out(), f"written: {path}")


def _work(store: Store, **how: Any) -> None:
    """Run behind a line that says how far it is; then say how it ended."""
    inputs.parse_device(how["device"])
    start = time.monotonic()
    before = store.counts()
    try:
        with _progress(store) as watch:
            counts = control.execute(store, watch=watch, **how)
    except KeyboardInterrupt:
        console.err().print(
            f"stopped; {_words(store.counts(), None)}. "
            f"Continue: spiritlevel study resume {store.folder}",
            soft_wrap=True,
        )
        raise
    page = console.out()
    took = _duration(time.monotonic() - start)
    page.print(
        f"{store.study.name}: {_words(counts, None)}; {counts.done - before.done} of them now, "
        f"in {took}",
        soft_wrap=True,
    )
    page.print(f"in {store.folder}; next: spiritlevel study report {store.folder}", soft_wrap=True)
    if counts.failed:
        raise SpiritlevelError(
            f"{counts.failed} of {counts.total} runs failed. The others are kept. "
            f"See why: spiritlevel study status {store.folder}"
        )


@contextlib.contextmanager
def _progress(store: Store) -> Iterator[Watch]:
    terminal = console.err()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    first = store.counts()
    start = time.monotonic()
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as bar:
        task = bar.add_task("runs", total=first.total, completed=first.done, note="")

        def watch(counts: Counts) -> None:
            ended = counts.done + counts.failed
            now = ended - first.done - first.failed
            note = f"{counts.failed} failed" if counts.failed else ""
            if now > 0:  # at the pace of this session, however many workers it has
                left = (time.monotonic() - start) / now * counts.remaining
                note = ", ".join(filter(None, (note, f"{_duration(left)} left")))
            bar.update(task, completed=ended, note=note)

        yield watch


def _words(counts: Counts, left: float | None) -> str:
    parts = [f"{counts.done} of {counts.total} runs done"]
    for name in ("running", "failed", "pending"):
        if number := getattr(counts, name):
            parts.append(f"{number} {name}")
    if left:
        parts.append(f"about {_duration(left)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Seconds in words.

    >>> _duration(7.2), _duration(300), _duration(9000)
    ('7 s', '5 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
