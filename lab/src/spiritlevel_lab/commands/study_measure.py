"""`spiritlevel study measure`: checkpoints that exist already, as a population that is judged."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spiritlevel.cli import completion, console, inputs, options
from spiritlevel.ground.errors import SpiritlevelError

from . import study_work

EXAMPLES = """\b
Examples:
  spiritlevel study measure runs.csv --model my_nets:make --data train.npz --setting lr
  spiritlevel study measure runs --names 'lr{lr}_seed{seed}.pt' --model my_nets:make \\
      --model-arg width=32 --data digits --test digits
  spiritlevel study measure 'lightning_logs/*' --model my_nets:make --data train.npz \\
      --setting lr --outcome val_accuracy --workers 2
  spiritlevel study measure out --table runs.csv
"""
Names = list[str] | None


def _columns(help_text: str, flag: str) -> Any:
    return typer.Option(
        flag, metavar="COLUMN", help=help_text, callback=inputs.split_commas, show_default=False
    )


def measure(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATHS...",
            help="A .csv table with the column checkpoint, or checkpoints: files, folders, "
            "patterns in quotes.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A built-in name or module:function; not needed if the table has a column model.",
            autocompletion=completion.model_names,
        ),
    ] = None,
    model_arg: options.ModelArguments = None,
    model_column: Annotated[
        Names, _columns("A setting that is an argument of the model, too.", "--model-column")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="What is measured on: digits, mnist, folder:/images, or an .npz with x and y.",
            autocompletion=completion.data_names,
        ),
    ] = None,
    split: options.Split = "train",
    samples: options.Samples = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Test data: test loss, test accuracy and the gap are then evaluated.",
            autocompletion=completion.data_names,
        ),
    ] = None,
    setting: Annotated[
        Names, _columns("A column that was set before training; may be repeated.", "--setting")
    ] = None,
    outcome: Annotated[
        Names, _columns("A column that came out of training; may be repeated.", "--outcome")
    ] = None,
    ignore: Annotated[
        Names, _columns("A column to leave out; may be repeated.", "--ignore")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="How paths name settings, such as 'lr{lr}/seed{seed}.pt'."
        ),
    ] = None,
    table: Annotated[
        pathlib.Path | None,
        typer.Option(
            metavar="PATH",
            help="Write what was found as a table, to add columns to, and measure nothing.",
        ),
    ] = None,
    batch_size: options.BatchSize = 512,
    loss: options.LossName = "cross_entropy",
    measures: options.Measures = None,
    option: options.Options = None,
    layers: options.Layers = None,
    head: options.HeadName = None,
    method: Annotated[
        str | None, typer.Option(help="How traces are found, as for `measure` (default: auto).")
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(metavar="SHARE", help="As for `measure` (default: 0.05).")
    ] = None,
    max_passes: Annotated[
        int | None, typer.Option(metavar="N", help="As for `measure` (default: 100).")
    ] = None,
    dtype: options.Dtype = "float32",
    device: study_work.Device = "cpu",
    threads: Annotated[
        int, typer.Option(min=1, help="Threads per worker; more for large networks.")
    ] = 1,
    workers: study_work.Workers = 1,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Output folder (default: studies/NAME).")
    ] = None,
    allow_code: study_work.AllowCode = False,
    json: options.Json = None,
) -> None:
    """Measure checkpoints that exist already, and keep them as a study.

    A row of the table is a network. These columns are understood by themselves: checkpoint, name,
    model, initial, seed, train_loss, train_accuracy, test_loss, test_accuracy, gap, error_gap and
    test_error. You can stop at any time; the same command goes on. Then see `study report`.
    """
    from ..population import control
    from ..population.existing import studies
    from ..population.existing.columns import ColumnRoles, read_networks
    from . import given_networks

    talk = console.talk(json)
    roles = ColumnRoles(setting or [], outcome or [], model_column or [], ignore or [])
    given, roles, remarks = given_networks.found(talk, paths, names, roles, table)
    if given is None:
        return
    if data is None:
        raise SpiritlevelError(
            "The --data must say what the networks are measured on, usually their training data: "
            "digits, a fetched data set, folder:/images, or an .npz with x and y."
        )
    networks = read_networks(given, roles)
    has_models = all("name" in network["model"] for network in networks)
    if model is None and not has_models:
        raise SpiritlevelError(
            "The --model must say how a network is built: module:function, or a built-in name. Or "
            "give the table a column 'model'."
        )
    judged = bool(networks[0]["outcomes"]) or test is not None
    studies.check_files(networks)
    studies.check_number(networks, judged=judged)
    section = {"name": model or networks[0]["model"]["name"]}
    section |= inputs.parse_pairs(model_arg or [], "--model-arg width=16")
    chosen = inputs.parse_pairs(option or [], "--option rho=0.1")
    if "initial" in chosen:
        raise SpiritlevelError(
            "The weights before training are given for each network: put their paths in a column "
            "'initial' of the table."
        )
    inputs.refuse_unread(chosen, measures, ())
    # A model that was typed is the user's own word; one in a table may be somebody else's.
    trusted = allow_code or not any("name" in network["model"] for network in networks)
    asked = {
        "batch": batch_size,
        "method": method,
        "rtol": rtol,
        "max_passes": max_passes,
        "layers": inputs.one_or_many(layers),
        "head": head,
        "options": chosen or None,
    }
    how: dict[str, Any] = {
        "name": _name(paths),
        "file": pathlib.Path(paths[0]),
        "model": section,
        "data": {"name": data} | _given({"samples": samples, "test": test}),
        "task": {"split": split, "loss": loss},
        "measures": measures or None,
        "measure_options": _given(asked),
        "training": {"dtype": dtype, "threads": threads},
    }
    study = studies.study_of(networks, **how)
    control.check(study, allow_code=trusted)
    with console.progress("reading checkpoints") as show:
        study = studies.with_fingerprints(study, show)
    given_networks.introduce(talk, study, remarks, judged=judged)
    with studies.open_store(out or control.default_folder(study.name), study) as store:
        if again := store.retry_failed():
            console.note(console.err(), f"{again} failed runs will be tried again")
        work = study_work.checked("local", workers, device)
        study_work.work(store, json, allow_code=trusted, **work)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _name(paths: Sequence[str]) -> str:
    """The study's name: that of the table or folder."""
    path = pathlib.Path(os.path.abspath(paths[0]))
    stem = path.stem if path.suffix else path.name
    kept = "".join(each for each in stem if each.isalnum() or each in "-_.= ").strip(". ")
    return kept or "networks"
