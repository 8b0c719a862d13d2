"""Self-contained HTML pages from measurements, audits, comparisons, spectra and studies.

    import spiritlevel as sl
    from spiritlevel.pages import report

    report.save(sl.measure(model, loader), "report.html")

The file needs no network and opens anywhere. `report.read("measured.json")` gives back what a
command wrote with --json.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ...analysis.audit import Audit
from ...analysis.comparison import Comparison
from ...analysis.spectra import Eigenvalues, Spectrum
from ...content import Page as Page
from ...engine.weight_space.density import SpectralDensity
from ...errors import SpiritlevelError
from ...files import write_atomically
from ...notebooks import register_page_writer
from ...results import Progress, Report
from ...study.storage.store import Store
from . import audit, comparison, measurement, spectrum
from .page import render as render
from .reading import read as read


def html(result: Any, *, title: str = "") -> str:
    """The page of a Report, Audit, Comparison, Eigenvalues, SpectralDensity, Spectrum or Store.

    Args:
        result: what `measure`, `audit`, `compare`, `eigenvalues` or `density` returned, both of
            the last two as a `Spectrum`, or the open `Store` of a study.
        title: the heading; "" takes one that says what the page is.
    """
    return render(page_of(result, title=title))


def save(result: Any, path: str | os.PathLike[str], *, title: str = "") -> None:
    """Write the page to a file, all of it or nothing."""
    write_atomically(path, html(result, title=title).encode())


def _page(record: Any, path: str | os.PathLike[str] | None, *, title: str) -> str:
    text = html(record, title=title)
    if path is not None:
        write_atomically(path, text.encode())
    return text


register_page_writer(_page)


def page_of(
    result: Any,
    *,
    title: str = "",
    target: str = "gap",
    progress: Progress | None = None,
) -> Page:
    """The page as plain data, to look into or to change before `render` writes it.

    Args:
        result: as for `html`.
        title: as for `html`.
        target: what the measures of a study are judged by.
        progress: called as progress(done, total, what) while the page of a study is made.
    """
    if isinstance(result, Report):
        return measurement.page_of(result, title=title)
    if isinstance(result, Audit):
        return audit.page_of(result, title=title)
    if isinstance(result, Comparison):
        return comparison.page_of(result, title=title)
    if isinstance(result, Eigenvalues):
        result = Spectrum(eigenvalues=result)
    elif isinstance(result, SpectralDensity):
        result = Spectrum(density=result)
    if isinstance(result, Spectrum):
        return spectrum.page_of(result, title=title)
    if isinstance(result, Store):
        from . import study  # needs the packages of the study extra, which others do not

        page = study.page_of(result, target=target, progress=progress)
        return dataclasses.replace(page, title=title) if title else page
    raise SpiritlevelError(
        "A page can be made of a Report, an Audit, a Comparison, Eigenvalues, a SpectralDensity, a "
        f"Spectrum or the Store of a study. Got {type(result).__name__}. Pass what "
        "spiritlevel.measure, audit, compare or eigenvalues returned, or Store.open(folder)."
    )
