"""Where the rows of a monitor go: JSON lines, CSV, TensorBoard, or a user's function.

A row is a flat dict. A file is appended to and closed after every row, so that a run which is
killed loses nothing. A monitor that is resumed from a checkpoint first removes the rows that an
interrupted run wrote after that checkpoint: they will be measured again.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import pathlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...ground.errors import SpiritlevelError, brief
from ...ground.files import as_path, write_atomically
from ...ground.plain_text import cell

Row = dict[str, Any]
PREFIX = "flatness/"  # of the names under which loggers show the values


class Sink(Protocol):
    """Something that rows are written to."""

    def start(self, after: int | None) -> None:
        """Called before the first row. Keep the rows up to step `after`; None starts a new run."""

    def write(self, row: Row) -> None:
        """Write one row at once, so that a killed run does not lose it."""


def open_sinks(to: Any, columns: Sequence[str]) -> list[Sink]:
    """The sinks for what a user passes as `to`; `columns` are those of a CSV file."""
    if to is None:
        return []
    if isinstance(to, list | tuple):
        return [sink for part in to for sink in open_sinks(part, columns)]
    if isinstance(to, str | os.PathLike):
        path = as_path(to, what="'to' argument")
        form = FORMS.get(path.suffix.lower())
        if form is not None:
            return [File(path, form(columns))]
    elif hasattr(to, "add_scalar"):
        return [Scalars(to)]
    elif callable(to):
        return [Function(to)]
    raise SpiritlevelError(
        "The 'to' argument must be a path that ends in .jsonl or .csv, a TensorBoard "
        f"SummaryWriter, a function of a row, or a list of these. Got {brief(to)}."
    )


def scalars(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """The finite measured values of a row, under the names that loggers show.

    >>> scalars({"step": 3, "status": "ok", "relative.kappa": 2.0}, ["relative.kappa"])
    {'flatness/relative.kappa': 2.0}
    """
    values = {name: float(row[name]) for name in names if row.get(name) is not None}
    return {PREFIX + name: value for name, value in values.items() if math.isfinite(value)}


@dataclasses.dataclass(frozen=True)
class Form:
    """How rows are written to a file, one per line."""

    line: Callable[[Row], str]
    step_of: Callable[[str], int | None]  # of a line; None for one that is damaged
    heading: str = ""


class File:
    """A file that rows are appended to."""

    def __init__(self, path: pathlib.Path, form: Form) -> None:
        if not path.parent.is_dir():
            raise SpiritlevelError(
                f"The 'to' argument must be in a folder that exists. Got {brief(str(path))}. "
                f"Create {str(path.parent)!r} first."
            )
        self.path, self.form = path, form

    def start(self, after: int | None) -> None:
        """A run that is not resumed moves the file of an earlier one aside, as run.1.jsonl."""
        if not self._written():
            return
        text = self.path.read_text(encoding="utf-8")
        heading = self.form.heading
        if after is None or not text.startswith(heading):  # other columns: also another run
            self.path.rename(_free_name(self.path))
            return
        lines = text[len(heading) :].splitlines(keepends=True)
        remaining = heading + "".join(line for line in lines if self._belongs(line, after))
        if remaining != text:
            write_atomically(self.path, remaining.encode())

    def write(self, row: Row) -> None:
        """Append the row as one line, after the heading if the file is new."""
        heading = "" if self._written() else self.form.heading
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(heading + self.form.line(row))
        except OSError:  # a full disk takes half of a line, which must not stay
            with contextlib.suppress(OSError):
                os.truncate(self.path, before)
            raise

    def _written(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > 0

    def _belongs(self, line: str, after: int) -> bool:
        """Whether a line is complete and not from after that step."""
        step = self.form.step_of(line) if line.endswith("\n") else None
        return step is not None and step <= after


def json_lines(columns: Sequence[str]) -> Form:
    """One JSON object per row; NaN is written as null."""

    def line(row: Row) -> str:
        plain = {key: _plain(value) for key, value in row.items()}
        return json.dumps(plain, allow_nan=False) + "\n"

    def step_of(line: str) -> int | None:
        try:
            return int(json.loads(line)["step"])
        except (json.JSONDecodeError, KeyError, TypeError):
            return None

    return Form(line, step_of)


def table(columns: Sequence[str]) -> Form:
    """CSV with the same columns in every row; what a row does not have stays empty."""

    def line(row: Row) -> str:
        cells = [row.get(column) for column in columns]
        # one line per row, even if the text of an error has several
        flat = [cell(" ".join(c.split()) if isinstance(c, str) else c) for c in cells]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(flat)
        return text.getvalue()

    def step_of(line: str) -> int | None:
        first = line.partition(",")[0]
        return int(first) if first.isdecimal() else None

    return Form(line, step_of, heading=",".join(columns) + "\n")


FORMS = {".jsonl": json_lines, ".csv": table}


class Scalars:
    """A TensorBoard SummaryWriter, or anything else with `add_scalar`."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def start(self, after: int | None) -> None:
        """Do nothing: TensorBoard shows the newest value of a step."""

    def write(self, row: Row) -> None:
        """Add every finite value as flatness/NAME."""
        names = [key for key, value in row.items() if "." in key and isinstance(value, float)]
        for name, value in scalars(row, names).items():
            self.writer.add_scalar(name, value, row["step"])
        if hasattr(self.writer, "flush"):
            self.writer.flush()


class Function:
    """A function that is called with every row."""

    def __init__(self, function: Callable[[Row], object]) -> None:
        self.function = function

    def start(self, after: int | None) -> None:
        """Do nothing: the function keeps its rows itself."""

    def write(self, row: Row) -> None:
        """Call the function with a copy, so that it cannot change the monitor's rows."""
        self.function(dict(row))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null for the one, as pandas reads it, "inf" for the other.

    >>> _plain(math.nan), _plain(math.inf), _plain(1.5)
    (None, 'inf', 1.5)
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _free_name(path: pathlib.Path) -> pathlib.Path:
    """run.jsonl becomes run.1.jsonl, or the first number that is free."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free


class Writer:
    """Hands rows to one sink, now or later: training is worth more than a row.

    A sink that fails (a full disk, a server that is away, an error of the user's function) is
    warned about, and nothing is raised.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._started = False  # whether the sink knows where to begin
        self._after: int | None = None  # the step to continue from
        self._waiting: collections.deque[Row] = collections.deque()
        self._failing = False

    def resume(self, after: int) -> None:
        """Continue from that step: what waits is of a later one, and will be measured again."""
        self._after, self._started = after, False
        self._waiting = collections.deque(row for row in self._waiting if row["step"] <= after)

    def write(self, row: Row) -> None:
        """Write the rows that wait and this one. Where that fails, warn and go on.

        Rows wait for a disk or a server. One that the sink itself cannot take is left out.
        """
        self._waiting.append(row)
        try:
            if not self._started:
                self._sink.start(self._after)
                self._started = True
            while self._waiting:
                self._sink.write(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            self._warn(f"{error}. The rows are written as soon as that works again")
        except Exception as error:  # whatever it is, training must go on
            self._waiting.popleft()
            self._warn(f"{type(error).__name__}: {error}")
        else:
            self._failing = False

    def _warn(self, cause: str) -> None:
        """Warn that rows are lost; once, until writing works again."""
        if not self._failing:
            target = getattr(self._sink, "path", None) or type(self._sink).__name__
            warnings.warn(
                f"The monitor cannot write its rows to {str(target)!r}: {cause}. Training goes on, "
                "and `monitor.rows` has them all.",
                RuntimeWarning,
                stacklevel=5,
            )
        self._failing = True
