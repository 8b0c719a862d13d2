"""The experiments of the papers: what each claims, how it is run here, and what came out.

Each file `paper_…` holds one. Its study is in the library under the same name; the tasks beside
them do what a study does not do by itself.
"""

from .experiment import Experiment, Figure, Outcome, Section, Series, Table
from .pages import pages, write_pages
from .records import Record, record
from .registry import find, names
from .render import Result, render

__all__ = [
    "Experiment",
    "Figure",
    "Outcome",
    "Record",
    "Result",
    "Section",
    "Series",
    "Table",
    "find",
    "names",
    "pages",
    "record",
    "render",
    "write_pages",
]
