"""Read back what a command wrote with --json, by the format that the file names."""

from __future__ import annotations

import os
import re
from typing import Any

from ...ground.errors import SpiritlevelError
from ...ground.files import as_path
from ...records.measurements import Report
from ...records.reading import parse_json
from ...verbs.audit import Audit
from ...verbs.comparison import Comparison
from ...verbs.spectra import Spectrum

Readable = Report | Audit | Comparison | Spectrum
KINDS: tuple[type[Readable], ...] = (Report, Audit, Comparison, Spectrum)
READERS = {kind.FORMAT: kind for kind in KINDS}
NEEDED = "what measure, audit, compare or spectrum wrote with --json"


def read(path: str | os.PathLike[str]) -> Readable:
    """What is in a JSON file that `spiritlevel measure`, `audit`, `compare` or `spectrum` wrote."""
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
