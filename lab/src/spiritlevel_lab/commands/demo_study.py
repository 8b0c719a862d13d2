"""The demo: a population of small networks, trained, measured, analysed and reported.

It runs the study `digits` with its preset `quick`, writes the page that `spiritlevel report` makes
of it, figures, and the audit of one network: what users do with their own networks. It can be
stopped at any time and continues where it was when started again.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from torch import nn

from spiritlevel.ground.errors import require
from spiritlevel.ground.files import write_atomically
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.pages import figures as plots
from spiritlevel.pages import report
from spiritlevel.results import Progress
from spiritlevel.verbs.audit import Audit, audit

from ..pages.figures import study_figures
from ..pages.report import study as study_page
from ..pages.study_answer import StudyAnswer, answer
from ..population import control, population_statistics
from ..population.executors.progress import Watch, study_status
from ..population.population import Population
from ..population.runs.networks import build_model
from ..population.runs.run_data import load_data
from ..population.settings.definition import Study
from ..population.settings.run import RunSettings
from ..population.storage.integrity import intact_checkpoint
from ..population.storage.store import Counts, Store
from ..statistics import StudyStatistics

AUDITED = ("curvature.trace", "curvature.lambda_max", "relative.kappa", "neuron.rho_sum")
SAMPLES = 200  # of the training data, for the audit
PICTURES = ("gap-log", "correlations")
NEEDS = (  # checked before the training
    ("plotly", "The demo's report", "report"),
    ("matplotlib", "Drawing the demo's figures", "plots"),
    ("yaml", "The demo's study", "study"),
)


@dataclasses.dataclass(frozen=True)
class Demo:
    """The results of the demo, and where they are."""

    folder: pathlib.Path
    study: Study
    counts: Counts
    statistics: StudyStatistics
    answer: StudyAnswer
    audited: RunSettings
    audit: Audit

    @property
    def checkpoint(self) -> pathlib.Path:
        """The weights of the network that was audited."""
        with Store.open(self.folder / "study") as store:
            return store.checkpoint(self.audited.id)


def run(
    folder: str | os.PathLike[str],
    *,
    preset: str = "quick",
    workers: int = 2,
    watch: Watch | None = None,
    progress: Progress | None = None,
) -> Demo:
    """Run the demo, or what is left of it, in `folder`.

    Args:
        folder: gets study/, report.html, audit.html and the figures.
        preset: of the study `digits`; "glance" trains only briefly.
        workers: processes that train side by side.
        watch: called with the counts of the runs while they train.
        progress: called while the report and the audit are made.
    """
    for package, what, extra in NEEDS:
        require(package, what=what, extra=extra)
    out = pathlib.Path(folder)
    tell = progress or (lambda done, total, text: None)
    study = control.find("digits").with_preset(preset)
    control.check(study)
    with Store.create(out / "study", study) as store:
        if watch is not None:
            watch(study_status(store))
        counts = control.execute(store, workers=workers, watch=watch)
        tell(0, 3, "statistics")
        population = Population.of(store)
        statistics = population_statistics.statistics(population)
        said = answer(population, statistics, "gap")
        page = study_page.page_of(store, population=population, statistics=statistics, said=said)
        write_atomically(out / "report.html", report.render(page).encode())
        tell(1, 3, "figures")
        drawn = study_figures(population, statistics).drawn
        for name in PICTURES:
            write_atomically(out / f"{name}.png", plots.save(drawn[name](), "png"))
        tell(2, 3, "audit")
        settings, model = _first_network(store)
        audited = audit(model, _samples(settings), measures=list(AUDITED))
        report.save(audited, out / "audit.html", title=f"Audit of run {settings.id}")
    return Demo(out, study, counts, statistics, said, settings, audited)


def _first_network(store: Store) -> tuple[RunSettings, nn.Module]:
    """The first trained network of the grid."""
    done = {row["id"] for row in store.rows("runs") if row["status"] == "done"}
    settings = next(each for each in store.settings() if each.id in done)
    model = build_model(settings, "cpu")
    load_checkpoint(model, intact_checkpoint(store.folder, settings.id))
    return settings, model.eval()


def _samples(settings: RunSettings) -> Any:
    data = load_data(settings)
    return data.x[:SAMPLES], data.y[:SAMPLES]
