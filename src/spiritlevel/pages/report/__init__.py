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
import re
from collections.abc import Callable
from typing import Any

from ...ground import plugins
from ...ground.errors import MissingExtra, SpiritlevelError
from ...ground.files import as_path, write_atomically
from ...records.content import Cards, Section, Text
from ...records.content import Page as Page
from ...records.notebooks import Shown, register_page_writer
from ...records.reading import Saved, parse_json
from ...results import (
    Audit,
    Comparison,
    Eigenvalues,
    Landscape,
    Pruning,
    Quantization,
    Report,
    SpectralDensity,
)
from ...verbs.spectra import Spectrum
from . import audit, comparison, measurement, numbers
from .page import render as render

KINDS: tuple[type[Saved], ...]
KINDS = (Report, Audit, Comparison, Spectrum, Landscape, Quantization, Pruning)
READERS = {kind.FORMAT: kind for kind in KINDS}
NEEDED = "what a command wrote with --json"


def html(result: Any, *, title: str = "") -> str:
    """The page of a record.

    Args:
        result: what `measure`, `audit`, `compare`, `landscape` or another verb returned, or the
            open `Store` of a study.
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
        "A page can be made of a record of spiritlevel.results or of the Store of a study. Got "
        f"{type(result).__name__}. Pass what spiritlevel.measure, audit or another verb returned, "
        "or Store.open(folder)."
    )


def _of_record(record: Shown, *, title: str) -> Page:
    """What the record tells: its answer on top, then pictures, tables and notes."""
    first, *parts = record.describe()
    lead, *more = first.paragraphs if isinstance(first, Text) else [""]
    settings = getattr(record, "settings", {})
    names = [name for part in parts if isinstance(part, Cards) for name in part.names]
    told = [part for part in parts if not isinstance(part, Cards)]
    warning = numbers.warning(settings)
    return Page(
        title=title or record.HEADING,
        lead=lead,
        highlights=[*more, warning] if warning else more,
        facts=numbers.subject_of(settings),
        settings=numbers.settings_of(settings),
        sections=[Section("result", "Result", told), *(numbers.about(names) if names else [])],
    )


def page_of_folder(folder: pathlib.Path, *, title: str = "", **choices: Any) -> Page:
    """The page of what a folder holds, such as a study."""
    plugins.load("spiritlevel.pages")
    if not _of_folders:
        raise MissingExtra(what="The page of a folder", package="spiritlevel-lab", extra="lab")
    return _of_folders[0](folder, title=title, **choices)


def _maker_of(result: Any) -> PageMaker | None:
    """Other packages are imported only for what is no record of ours."""
    if not isinstance(result, Shown):
        plugins.load("spiritlevel.pages")
    latest_first = reversed(_makers.items())
    return next((maker for kind, maker in latest_first if isinstance(result, kind)), None)


register_page(Shown, _of_record)
register_page(Report, measurement.page_of)
register_page(Audit, audit.page_of)
register_page(Comparison, comparison.page_of)
# alone, too, they are shown in the picture of a spectrum
register_page(Eigenvalues, lambda found, title: _of_record(Spectrum(found), title=title))
register_page(SpectralDensity, lambda found, title: _of_record(Spectrum(None, found), title=title))


# -- files -----------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Shown:
    """The record in a JSON file that a command wrote, by the format that the file names."""
    file = as_path(path, what="file of a report")
    name = str(file)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise SpiritlevelError(
            f"The file {name!r} cannot be read: {cause}. It must be {NEEDED}, or a study's folder."
        ) from error
    form = _format(text, name)
    try:
        return READERS[form].from_json(text)
    except SpiritlevelError as error:
        raise damaged(name, form, error) from error


def damaged(name: str, form: str, error: Exception) -> SpiritlevelError:
    """The error for a file that has a format of ours and does not hold to it."""
    return SpiritlevelError(
        f"The file {name!r} says that it is {form!r}, but it is damaged or was edited: "
        f"{_cause(error)}. Write it again with --json."
    )


def _format(text: str, name: str) -> str:
    try:
        data = parse_json(text)
    except SpiritlevelError as error:
        raise SpiritlevelError(
            f"The file {name!r} cannot be read: {error}. It must be {NEEDED}; write it again."
        ) from error
    form = _named(data)
    if form in READERS:
        return form
    kind, _, version = form.rpartition("-")
    readable = [other for other in READERS if other.rpartition("-")[0] == kind]
    if readable and version.isdigit():
        raise SpiritlevelError(
            f"The file {name!r} is in the format {form!r}; this version of spiritlevel reads "
            f"{readable[0]!r}. It was written by another version: pip install -U spiritlevel, or "
            "write it again with this one."
        )
    got = f"the format {form!r}" if form else "JSON that names no format"
    raise SpiritlevelError(
        f"The file {name!r} holds {got}. It must be {NEEDED} ({', '.join(READERS)}), or a study's "
        "folder."
    )


def _named(data: Any) -> str:
    """The format; a spectrum is also known by what is in it, since it once named none."""
    if not isinstance(data, dict):
        return ""
    if "format" not in data and ("eigenvalues" in data or "density" in data):
        return Spectrum.FORMAT
    return str(data.get("format", ""))


def _cause(error: Exception) -> str:
    """The bare cause, without our own advice for callers of from_json."""
    inner = error.__cause__ if isinstance(error, SpiritlevelError) and error.__cause__ else error
    text = str(inner) if isinstance(inner, SpiritlevelError) else f"{type(inner).__name__}: {inner}"
    return re.sub(r"\s+", " ", text).rstrip(".")
