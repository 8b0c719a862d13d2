"""`spiritlevel study`: run a population of networks, resume it, inspect it, report on it."""

from __future__ import annotations

import json as json_text
import pathlib
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from spiritlevel.cli import completion, console, inputs, options, outputs
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import own_folder, write_atomically

from ..population.outcome_names import TARGETS
from . import figures, study_measure, study_preflight, study_work

FORMAT = "spiritlevel-studies-1"  # of the list

app = typer.Typer(
    name="study",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a population of networks, measure them, and see what the measures say.",
    epilog="""\b
Examples:
  spiritlevel study list
  spiritlevel study preflight digits --preset quick
  spiritlevel study run digits --preset quick --workers 2
  spiritlevel study status studies/digits-quick
  spiritlevel study report studies/digits-quick
""",
)


_studies = completion.in_file("studies", __file__)


@app.command(
    "list",
    epilog="""\b
Examples:
  spiritlevel study list
  spiritlevel study list --json - | jq '.studies[].name'
""",
)
def list_studies(json: options.Json = None) -> None:
    """List the available studies with their presets."""
    from ..claims.experiment import PAPERS
    from ..population import control
    from ..population.registry import study_names

    rows: list[dict[str, Any]] = []
    for name in study_names():
        listed_study = control.find(name)
        paper = PAPERS.get(name.partition("-")[0], "")
        known = {"name": name, "presets": list(listed_study.presets), "paper": paper}
        rows.append(known | {"description": listed_study.description})
    talk = console.talk(json)
    for paper in dict.fromkeys(row["paper"] for row in rows):
        console.tell(talk, "", bold=str(paper or "Of no paper"))
        listed = Table(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False, show_header=False)
        listed.add_column("study", no_wrap=True)
        listed.add_column("description")
        for row in rows:
            if row["paper"] == paper:
                presets = ", ".join(row["presets"])
                listed.add_row(row["name"], f"{row['description']} ({presets or 'no presets'})")
        console.show(talk, listed)
        talk.print()
    console.note(talk, "A name such as 002-fig-4 is a table or figure of the paper above it.")
    console.note(talk, "Run one: spiritlevel study run NAME --preset quick")
    console.note(talk, "See its results: spiritlevel study report studies/NAME-quick")
    outputs.write_json(talk, json, json_text.dumps({"format": FORMAT, "studies": rows}, indent=2))


@app.command(
    epilog="""\b
Examples:
  spiritlevel study run digits --preset quick --workers 2
  spiritlevel study run my_study.yaml --out runs/mine --executor vmap
  spiritlevel study run 002-fig-5 --preset quick --set data.name=mnist:data/mnist --set seeds=2
"""
)
def run(
    study: Annotated[
        str,
        typer.Argument(
            help="A .yaml or .py file, or a name that `spiritlevel study list` shows.",
            autocompletion=_studies,
        ),
    ],
    preset: Annotated[
        str | None, typer.Option(help="One of the study's presets, such as quick.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, such as epochs=5; may be repeated."),
    ] = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Output folder (default: studies/NAME-PRESET).")
    ] = None,
    executor: study_work.Executor = "local",
    workers: study_work.Workers = 1,
    address: study_work.Address = None,
    device: study_work.Device = "cpu",
    per_gpu: study_work.PerGpu = 1,
    allow_code: study_work.AllowCode = False,
    json: options.Json = None,
) -> None:
    """Run a study, or what is left of it. You can stop it at any time and resume it later."""
    from ..population import control, population_statistics
    from ..population.storage.store import Store

    _refuse_without_runs(study)
    chosen = control.find(study)
    if preset is not None:
        chosen = chosen.with_preset(preset)
    chosen = chosen.with_values(inputs.parse_pairs(values or [], "--set epochs=5"))
    control.check(chosen, allow_code=allow_code)
    folder = out or control.default_folder(chosen.name, preset)
    where = {"device": device, "address": address, "per_gpu": per_gpu}
    how: dict[str, Any] = {"executor": executor, "workers": workers, **where}
    study_work.check(**how)
    with Store.create(folder, chosen) as store:
        if chosen.task is None and len(chosen.runs()) > 1:
            console.note(console.err(), population_statistics.preflight(chosen).sentence)
        study_work.work(store, json, allow_code=allow_code, **how)


def _refuse_without_runs(name: str) -> None:
    from ..papers import registry as experiments

    if name in experiments.names() and (runs := experiments.find(name).rows_of):
        raise SpiritlevelError(
            f"The experiment {name!r} has no runs of its own: it looks at those of {runs!r}. Run "
            "that study; its report judges both."
        )


@app.command(
    epilog="""\b
Examples:
  spiritlevel study resume studies/digits-quick --workers 2
  spiritlevel study resume studies/digits-quick --retrain
"""
)
def resume(
    folder: study_work.Folder,
    executor: study_work.Executor = "local",
    workers: study_work.Workers = 1,
    address: study_work.Address = None,
    device: study_work.Device = "cpu",
    per_gpu: study_work.PerGpu = 1,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="Train runs again whose weights are missing or damaged."),
    ] = False,
    allow_code: study_work.AllowCode = False,
    json: options.Json = None,
) -> None:
    """Finish a study. Failed runs are tried again."""
    from ..population import control
    from ..population.storage.store import Store

    where = {"device": device, "address": address, "per_gpu": per_gpu}
    how: dict[str, Any] = {"executor": executor, "workers": workers, **where}
    study_work.check(**how)
    with Store.open(folder) as store:
        lost = control.check_files(store, retrain=retrain)
        if again := control.retry_failed(store, allow_code=allow_code):
            console.note(console.err(), f"{again} failed runs will be tried again")
        study_work.work(store, json, allow_code=allow_code, **how)
    if lost:
        raise SpiritlevelError(lost)


@app.command(
    epilog="""\b
Examples:
  spiritlevel study status studies/digits-quick
  spiritlevel study status studies/digits-quick --json - | jq .done
"""
)
def status(folder: study_work.Folder, json: options.Json = None) -> None:
    """Show the progress of a study."""
    from ..population import control
    from ..population.storage.store import Store
    from .runs_progress import counted

    with Store.open(folder) as store:
        state = control.state(store)
    page = console.talk(json)
    page.print(f"{state.name}: {counted(state.counts, state.seconds_left)}", soft_wrap=True)
    for run_id, error in state.failures:
        console.tell(page, error, mark="  • ", bold=f"{run_id} ")
    outputs.write_json(page, json, json_text.dumps(state.to_dict(), indent=2))


@app.command(
    epilog="""\b
Examples:
  spiritlevel study report studies/digits-quick
  spiritlevel study report studies/002-fig-4-quick
  spiritlevel study report studies/digits-quick --target error_gap --json statistics.json
  spiritlevel study report studies/digits-quick --confounders train_loss --confidence 0.99
  spiritlevel study report studies/digits-quick --html report.html
"""
)
def report(
    folder: study_work.Folder,
    target: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(TARGETS)}, or a measure of the study (default: gap)."),
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples; 0 for none.")] = 2000,
    confounders: options.Confounders = None,
    confidence: options.Confidence = None,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Show what was found: how each measure relates to generalization, and how surely.

    For an experiment of a paper, it first says whether the paper's claim held. --verbose shows all
    numbers.
    """
    from spiritlevel.pages.report import render

    from ..pages.report import study as study_page
    from ..pages.study_answer import answer
    from ..papers.judgement import judge
    from ..population import population_statistics
    from ..population.population import Population
    from ..population.storage.store import Store
    from ..statistics.text import plain
    from . import claims, study_answers

    with Store.open(folder) as store:
        population = Population.of(store)
        hint = ""
        if target is None:
            target = population_statistics.default_target(population)
            hint = population_statistics.other_targets(population, target)
        with console.progress("statistics"):
            statistics = population_statistics.statistics(
                population,
                target=target,
                resamples=resamples,
                confounders=confounders,
                confidence=0.95 if confidence is None else confidence,
            )
        if html is not None:
            with console.progress("the page") as show:
                page = study_page.page_of(
                    store,
                    target=target,
                    population=population,
                    statistics=statistics,
                    progress=show,
                )
        counts = population.counts
        study = store.study
        with console.progress("the paper's claims"):
            judgements = judge(study, population.rows)
        said = answer(population, statistics, target)
    talk = console.talk(json)
    for judged in judgements:
        claims.print_claim(talk, judged)
        talk.print()
    study_answers.print_answer(talk, said, name=study.name)
    if counts.remaining:
        console.tell(talk, f"{counts.remaining} runs are not finished: results may change.")
    if hint:
        console.tell(talk, hint)
    if console.VOLUME.get() is console.Volume.VERBOSE:
        talk.file.write(f"\n{statistics.details(talk.width)}\n")
    else:
        console.note(talk, "Levels, confounders and all other numbers: --verbose, or --html FILE.")
    result = statistics.to_dict() | {"outcomes": plain(said.outcomes)}
    if judgements:
        result["experiment"], *others = [judged.to_dict() for judged in judgements]
        result |= {"more_experiments": others} if others else {}
    outputs.write_json(talk, json, json_text.dumps(result, indent=2, allow_nan=False))
    if html is not None:
        write_atomically(html, render(page).encode())
        console.note(talk, f"written: {html}")


@app.command(
    "export",
    epilog="""\b
Examples:
  spiritlevel study export studies/digits-quick --out tables
  spiritlevel study export studies/digits-quick --format parquet --json -
""",
)
def export_tables(
    folder: study_work.Folder,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="Output folder (default: FOLDER/export).")
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    json: options.Json = None,
) -> None:
    """Write runs, machines, epochs and measurements as tables."""
    from ..population import export
    from ..population.storage.store import Store

    with Store.open(folder) as store:
        where = out or own_folder(folder, "export")
        paths = [str(path) for path in export.export(store, where, kind=kind)]
    talk = console.talk(json)
    for path in paths:
        console.note(talk, f"written: {path}")
    outputs.write_json(talk, json, json_text.dumps({"written": paths}, indent=2))


app.command(epilog=study_measure.EXAMPLES)(study_measure.measure)
app.command(epilog=study_preflight.EXAMPLES)(study_preflight.preflight)
app.command(epilog=figures.EXAMPLES)(figures.figures)
