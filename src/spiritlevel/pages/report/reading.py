"""Read back what a command wrote with --json, by the format that the file names."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from ...analysis.audit import FORMAT as AUDIT_FORMAT
from ...analysis.audit import Audit
from ...analysis.comparison import FORMAT as COMPARISON_FORMAT
from ...analysis.comparison import Comparison
from ...analysis.spectra import SPECTRUM_FORMAT, Spectrum
from ...errors import SpiritlevelError
from ...records import REPORT_FORMAT, Report

Readable = Report | Audit | Comparison | Spectrum

READERS: dict[str, Callable[[str], Readable]] = {
    REPORT_FORMAT: Report.from_json,
    AUDIT_FORMAT: Audit.from_json,
    COMPARISON_FORMAT: Comparison.from_json,
    SPECTRUM_FORMAT: Spectrum.from_json,
}
NEEDED = "what measure, audit, compare or spectrum wrote with --json"


def read(path: str | os.PathLike[str]) -> Readable:
    """What is in a JSON file that `spiritlevel measure`, `audit`, `compare` or `spectrum` wrote."""
    name = str(path)
    try:
        text = pathlib.Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise SpiritlevelError(
            f"The file {name!r} cannot be read: {cause}. It must be {NEEDED}, or a study's folder."
        ) from error
    form = _format(text, name)
    try:
        result = READERS[form](text)
        _check(result)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpiritlevelError(
            f"The file {name!r} says that it is {form!r}, but it is damaged or was edited: "
            f"{_cause(error)}. Write it again with --json."
        ) from error
    return result


def _format(text: str, name: str) -> str:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SpiritlevelError(
            f"The file {name!r} is not complete JSON: {error}. It must be {NEEDED}; write it again."
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
        return SPECTRUM_FORMAT
    return str(data.get("format", ""))


def _check(result: Readable) -> None:
    """Pages say n everywhere: a report without it was not written by us."""
    if isinstance(result, Audit):
        draws = [report for reports in result.moved.values() for report in reports]
        settings = [report.settings for report in (result.original, *draws)]
    elif isinstance(result, Comparison):
        every = [*result.reports.values(), *(result.matched or {}).values()]
        settings = [report.settings for report in every]
    elif isinstance(result, Spectrum):
        settings = [] if result.eigenvalues is None else [result.eigenvalues.settings]
    else:
        settings = [result.settings]
    for given in settings:
        if int(given["num_samples"]) < 1:
            raise ValueError("num_samples is below 1")


def _cause(error: Exception) -> str:
    """The bare cause, without our own advice for callers of from_json."""
    inner = error.__cause__ if isinstance(error, SpiritlevelError) and error.__cause__ else error
    return re.sub(r"\s+", " ", f"{type(inner).__name__}: {inner}")
