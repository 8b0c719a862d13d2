"""Self-contained HTML pages from measurements, audits, comparisons and spectra.

    import spiritlevel as sl
    from spiritlevel.pages import report

    report.save(sl.measure(model, loader), "report.html")

The file needs no network and opens anywhere. `report.read("measured.json")` gives back what a
command wrote with --json. Packages add pages of their own records with `register_page`, in a module
that they name under the entry point `spiritlevel.pages`.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

from ...engine.weight_space.density import SpectralDensity
from ...ground import plugins
from ...ground.errors import MissingExtra, SpiritlevelError
from ...ground.files import write_atomically
from ...records.content import Page as Page
from ...records.notebooks import register_page_writer
from ...results import Report
from ...verbs.audit import Audit
from ...verbs.comparison import Comparison
from ...verbs.spectra import Eigenvalues, Spectrum
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


PageMaker = Callable[..., Page]  # (record or folder, title=..., and what else it takes)
_makers: dict[type, PageMaker] = {}
_of_folders: list[PageMaker] = []


def register_page(kind: type, maker: PageMaker) -> None:
    """Have `page_of` make the pages of records of this kind with `maker`."""
    _makers[kind] = maker


def register_folder_page(maker: PageMaker) -> None:
    """Have `page_of_folder` make pages with `maker`."""
    _of_folders[:] = [maker]


def page_of(result: Any, *, title: str = "", **choices: Any) -> Page:
    """The page as plain data, to look into or to change before `render` writes it.

    Args:
        result: as for `html`.
        title: as for `html`.
        choices: of a study, `target`: what its measures are judged by; and `progress`, called as
            progress(done, total, what) while its page is made.
    """
    if maker := _maker_of(result):
        return maker(result, title=title, **choices)
    raise SpiritlevelError(
        "A page can be made of a Report, an Audit, a Comparison, Eigenvalues, a SpectralDensity, a "
        f"Spectrum or the Store of a study. Got {type(result).__name__}. Pass what "
        "spiritlevel.measure, audit, compare or eigenvalues returned, or Store.open(folder)."
    )


def page_of_folder(folder: pathlib.Path, *, title: str = "", **choices: Any) -> Page:
    """The page of what a folder holds, such as a study."""
    plugins.load("spiritlevel.pages")
    if not _of_folders:
        raise MissingExtra(what="The page of a folder", package="spiritlevel-lab", extra="lab")
    return _of_folders[0](folder, title=title, **choices)


def _maker_of(result: Any) -> PageMaker | None:
    """Other packages are imported only for what is no record of ours."""
    for maker in (maker for kind, maker in _makers.items() if isinstance(result, kind)):
        return maker
    plugins.load("spiritlevel.pages")
    return next((maker for kind, maker in _makers.items() if isinstance(result, kind)), None)


register_page(Report, measurement.page_of)
register_page(Audit, audit.page_of)
register_page(Comparison, comparison.page_of)
register_page(Spectrum, spectrum.page_of)
register_page(Eigenvalues, lambda found, title: spectrum.page_of(Spectrum(found), title=title))
register_page(
    SpectralDensity, lambda found, title: spectrum.page_of(Spectrum(None, found), title=title)
)
