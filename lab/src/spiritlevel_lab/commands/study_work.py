"""Executing the runs of a study: options that several commands share, a bar, and how it ended."""

from __future__ import annotations

import json as json_text
import pathlib
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spiritlevel.cli import completion, console, inputs, outputs
from spiritlevel.cli.pace import duration
from spiritlevel.ground.errors import SpiritlevelError

if TYPE_CHECKING:
    from ..population.settings.definition import Study
    from ..population.storage.store import Store


StudyName = Annotated[
    str,
    typer.Argument(
        help="A .yaml or .py file, or a name that `spiritlevel study list` shows.",
        autocompletion=completion.in_file("studies", __file__),
    ),
]
Preset = Annotated[str | None, typer.Option(help="One of the study's presets, such as quick.")]
Folder = Annotated[pathlib.Path, typer.Argument(help="The folder of the study.")]
Executor = Annotated[
    str,
    typer.Option(help="local, vmap (networks of equal shape train together) or ray (a cluster)."),
]
Workers = Annotated[
    int, typer.Option(min=1, help="Worker processes; with ray, CPUs of the cluster it starts.")
]
Address = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster (default: start one on this machine).")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
PerGpu = Annotated[int, typer.Option(min=1, help="With ray: runs per GPU.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Trust the study: run code that it names even if it is not in the working folder.",
    ),
]


def chosen(study: str, preset: str | None, values: list[str] | None, example: str) -> Study:
    """The study of this name, with its preset and single settings changed."""
    from ..population import control

    found = control.find(study)
    if preset is not None:
        found = found.with_preset(preset)
    return found.with_values(inputs.parse_pairs(values or [], f"--set {example}"))


def checked(
    executor: str, workers: int, device: str, address: str | None = None, per_gpu: int = 1
) -> dict[str, Any]:
    """How to execute runs; refused before a folder is made or anything is printed."""
    from ..population import control

    how: dict[str, Any] = {"executor": executor, "workers": workers, "device": device}
    how |= {"address": address, "per_gpu": per_gpu}
    control.check_executor(**how)
    if address is None:  # a cluster may have GPUs that this machine lacks
        inputs.parse_device(device)
    return how


def work(store: Store, json: str | None, *, allow_code: bool, **how: Any) -> None:
    """Run as `checked` says with a progress bar, then print how it ended."""
    from ..population import control
    from ..population.executors.progress import study_status
    from ..population.runs.outcomes import DIVERGED
    from .runs_progress import counted, runs_progress

    start = time.monotonic()
    before = store.counts()
    try:
        with runs_progress() as watch:
            watch(study_status(store))
            counts = control.execute(store, watch=watch, allow_code=allow_code, **how)
    except KeyboardInterrupt:
        console.err().print(
            f"stopped; {counted(store.counts(), None)}. "
            f"To continue: spiritlevel study resume {store.folder}",
            soft_wrap=True,
        )
        raise
    page = console.talk(json)
    took = duration(time.monotonic() - start)
    page.print(
        f"{store.name}: {counted(counts, None)}; {counts.done - before.done} of them now, "
        f"in {took}",
        soft_wrap=True,
    )
    if diverged := sum(row["outcome"] == DIVERGED for row in store.rows("runs")):
        console.err().print(
            f"{diverged} of the {counts.done} diverged: their loss is no longer a number, so they "
            "were not measured. Try a lower learning rate. Where all of them diverge at any rate, "
            "try --set autocast=none, or another device.",
            soft_wrap=True,
        )
    if console.VOLUME.get() > console.Volume.QUIET:
        page.print(
            f"in {store.folder}; next: spiritlevel study report {store.folder}", soft_wrap=True
        )
    outputs.write_json(page, json, json_text.dumps(control.state(store).to_dict(), indent=2))
    if counts.failed:
        raise SpiritlevelError(
            f"{counts.failed} of {counts.total} runs failed; the results of the others are kept. "
            f"To see why: spiritlevel study status {store.folder}. To try them again: spiritlevel "
            f"study resume {store.folder}"
        )
