"""The pages of studies, among those that `spiritlevel.pages.report` makes."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from spiritlevel.pages.report import register_folder_page, register_page
from spiritlevel.records.content import Page
from spiritlevel.results import Progress

from ...population import population_statistics
from ...population.population import Population
from ...population.storage.store import Store
from . import study


def page_of_store(
    store: Store, *, title: str = "", target: str = "gap", progress: Progress | None = None
) -> Page:
    """The page of an open study; `target` is what its measures are judged by."""
    return _titled(study.page_of(store, target=target, progress=progress), title)


def page_of_folder(
    folder: pathlib.Path,
    *,
    title: str = "",
    target: str | None = None,
    confounders: Sequence[str] | None = None,
    confidence: float | None = None,
    progress: Progress | None = None,
) -> Page:
    """The page of a study's folder; None takes the target and the confidence that suit it."""
    with Store.open(folder) as store:
        population = Population.of(store)
        chosen = target or population_statistics.default_target(population)
        statistics = population_statistics.statistics(
            population,
            target=chosen,
            confounders=confounders,
            confidence=0.95 if confidence is None else confidence,
        )
        page = study.page_of(
            store, target=chosen, population=population, statistics=statistics, progress=progress
        )
    return _titled(page, title)


def _titled(page: Page, title: str) -> Page:
    return dataclasses.replace(page, title=title) if title else page


register_page(Store, page_of_store)
register_folder_page(page_of_folder)
