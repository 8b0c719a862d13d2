"""A table of networks, also from a .csv file: what its columns mean, and whether values fit.

These names are understood by themselves; all others are declared as settings or outcomes:

    checkpoint      a file or folder with the weights; every row has one
    name            what the network is called in reports (default: from its checkpoint)
    model           a built-in name or module:function, where the networks differ in it
    initial         a checkpoint from before training, for measures such as norms.distance
    seed            of its training; runs that differ in nothing else are one setting
    train_loss, train_accuracy, test_loss, test_accuracy, gap, error_gap, test_error: outcomes
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, suggestion
from spiritlevel.ground.files import as_path
from spiritlevel.ground.need import number
from spiritlevel.ground.plain_text import cell
from spiritlevel.measures import names as measure_names

from ..outcome_names import KNOWN_OUTCOMES
from ..population import targets_of
from ..runs.tasks import OF_THE_RUN

CHECKPOINT, NAME, MODEL, INITIAL, SEED = "checkpoint", "name", "model", "initial", "seed"
UNDERSTOOD = (CHECKPOINT, NAME, MODEL, INITIAL, SEED)
SHARES = ("train_accuracy", "test_accuracy", "test_error")
TAKEN = ("run", "status", "network", "variant", *OF_THE_RUN)  # of a row in a report
# A table rounds its numbers: a gap may differ from its losses by as much as they were rounded.
ROUNDED = 1e-3
ENDINGS = (".csv", ".tsv")
SEPARATORS = ",;\t"
NetworkRow = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ColumnRoles:
    """What the columns mean that are not understood by their names."""

    settings: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    arguments: Sequence[str] = ()  # settings that the model's factory takes, too
    ignored: Sequence[str] = ()

    @property
    def all_settings(self) -> list[str]:
        """The settings, and those that are arguments of the model; the seed is none of them."""
        return [n for n in dict.fromkeys((*self.settings, *self.arguments)) if n != SEED]


@dataclasses.dataclass(frozen=True)
class NetworkTable:
    """Rows of a table, or what was found in folders.

    Args:
        rows: by column; values are texts, numbers, or None for an empty cell.
        places: what each row is called in errors, such as "line 3".
        source: what all of it is called, such as "'runs.csv'".
        written: whether a person wrote the columns: then each must have a meaning.
    """

    rows: Sequence[NetworkRow]
    places: Sequence[str]
    source: str
    written: bool = True

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def cells(self, name: str) -> list[Any]:
        """One value for each row; refuses a row without one."""
        values = [row.get(name) for row in self.rows]
        if None in values:
            place = self.places[values.index(None)]
            column = "" if name == CHECKPOINT else " or the column"
            raise SpiritlevelError(
                f"The column {name!r} must have a value in every row. {place} of {self.source} has "
                f"none. Fill it in, or leave the row out{column}."
            )
        return values

    def check(self, passed: bool, i: int, name: str, wanted: str, then: str) -> None:
        """Refuse the value that a row has in a column if it did not pass."""
        if not passed:
            raise SpiritlevelError(
                f"The column {name!r} must hold {wanted}. {self.places[i]} of {self.source} has "
                f"{self.rows[i].get(name)!r}. {then}"
            )


def read_networks(table: NetworkTable, roles: ColumnRoles) -> list[dict[str, Any]]:
    """The networks of a study, without fingerprints; refuses what cannot be meant."""
    if not table.rows:
        raise SpiritlevelError(f"{table.source} has no networks. Add a row for each checkpoint.")
    _check_roles(table, roles)
    names = [str(name) for name in table.cells(NAME)] if NAME in table.columns else _paths(table)
    settings = {name: _setting(table.cells(name)) for name in roles.all_settings}
    found = [n for n in dict.fromkeys((*KNOWN_OUTCOMES, *roles.outcomes)) if n in table.columns]
    outcomes = {name: _outcome(table, name) for name in found if name not in roles.ignored}
    seeds = _seeds(table, roles)
    networks = []
    for i, row in enumerate(table.rows):
        of_row = {name: values[i] for name, values in settings.items()}
        known = {name: values[i] for name, values in outcomes.items()}
        _check_gap(table, i, known)
        own = {k: str(row[k]) for k in (MODEL, INITIAL) if row.get(k) is not None}
        own = {key: text for key, text in own.items() if key not in roles.ignored}
        named = {"name": own[MODEL]} if MODEL in own else {}
        started = {INITIAL: own[INITIAL]} if INITIAL in own else {}
        networks.append(
            {
                "name": names[i],
                "settings": of_row,
                "outcomes": known,
                "model": {name: of_row[name] for name in roles.arguments} | named,
                "task": {CHECKPOINT: str(row[CHECKPOINT])} | started,
                "seed": seeds[i],
            }
        )
    _check_places(table)
    return networks


# -- which columns there are ---------------------------------------------------------------------


def _check_roles(table: NetworkTable, roles: ColumnRoles) -> None:
    columns = table.columns
    listed = f"{table.source} has the columns {', '.join(columns)}"
    if CHECKPOINT not in columns:
        raise SpiritlevelError(
            f"{listed}. One must be called {CHECKPOINT!r}: the path of the weights."
            f"{suggestion(CHECKPOINT, columns)} Rename it."
        )
    declared = {"--setting": roles.all_settings, "--outcome": roles.outcomes}
    declared["--ignore"] = roles.ignored
    for flag, given in declared.items():
        for name in given:
            if name not in columns:
                raise SpiritlevelError(
                    f"{listed}. There is no {name!r}, which {flag} names."
                    f"{suggestion(name, columns)}"
                )
    roles_of: dict[str, list[str]] = {}
    for flag, given in declared.items():
        for name in given:
            roles_of.setdefault(name, []).append(flag)
    for name, flags in roles_of.items():
        if len(flags) > 1:
            raise SpiritlevelError(
                f"The column {name!r} cannot be both: {' and '.join(flags)} name it. Choose one."
            )
        if "--ignore" not in flags:
            _check_name(name, flags[0])
    if table.written:
        known = {*UNDERSTOOD, *KNOWN_OUTCOMES, *roles_of}
        if unknown := [name for name in columns if name not in known]:
            raise SpiritlevelError(
                f"{listed}. It is not known what {', '.join(map(repr, unknown))} "
                f"{'is' if len(unknown) == 1 else 'are'}. Say for each whether it was set before "
                f"training (--setting {unknown[0]}), came out of it (--outcome {unknown[0]}), or "
                f"is to be left out (--ignore {unknown[0]})."
            )


def _check_name(name: str, flag: str) -> None:
    fixed = UNDERSTOOD + (KNOWN_OUTCOMES if flag == "--setting" else ())
    taken = name in TAKEN or name in fixed
    if taken or name in set(measure_names()):
        raise SpiritlevelError(
            f"The column {name!r} has a name with another meaning here, so {flag} cannot name it. "
            "Rename the column."
        )


def _check_places(table: NetworkTable) -> None:
    seen: dict[str, str] = {}
    for row, place in zip(table.rows, table.places, strict=True):
        path = os.path.realpath(str(row[CHECKPOINT]))
        if path in seen:
            raise SpiritlevelError(
                f"{table.source} has the checkpoint {str(row[CHECKPOINT])!r} twice: {seen[path]} "
                f"and {place}. Leave one of them out."
            )
        seen[path] = place


# -- single values -------------------------------------------------------------------------------


def _paths(table: NetworkTable) -> list[str]:
    """Names from the checkpoints: as much of each path as tells them apart."""
    paths = [os.path.abspath(str(path)) for path in table.cells(CHECKPOINT)]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, folder) for path in paths]


def _setting(values: Sequence[Any]) -> list[Any]:
    """Numbers where all of a column are numbers, else texts."""
    read = [as_value(value) for value in values]
    is_one_kind = len({isinstance(value, str) for value in read}) == 1
    return read if is_one_kind else [str(value) for value in values]


def _outcome(table: NetworkTable, name: str) -> list[float]:
    values = [as_value(cell) for cell in table.cells(name)]
    for i, value in enumerate(values):
        advice = f"Correct it, leave the row out, or leave the column out with --ignore {name}."
        table.check(number()(value), i, name, "finite numbers", advice)
        if name in SHARES:
            advice = "Divide percentages by 100, or give the column another name and --outcome."
            table.check(0 <= value <= 1, i, name, "shares from 0 to 1", advice)
    return [float(value) for value in values]


def _check_gap(table: NetworkTable, i: int, known: Mapping[str, float]) -> None:
    """Refuse numbers that contradict each other: a gap is a difference of two losses."""
    for name, value in targets_of(known).items():
        if name in known and abs(known[name] - value) > ROUNDED * max(1.0, abs(value)):
            raise SpiritlevelError(
                f"The column {name!r} is {known[name]:g} in {table.places[i]} of {table.source}, "
                f"and the losses or accuracies beside it make it {value:g}. A gap is test loss − "
                "training loss, an error gap training − test accuracy, a test error 1 − test "
                "accuracy. Rename what is something else, and give it with --outcome."
            )


def _seeds(table: NetworkTable, roles: ColumnRoles) -> list[int]:
    if SEED not in table.columns or SEED in roles.ignored:
        return [0] * len(table.rows)
    seeds = [as_value(row.get(SEED)) for row in table.rows]
    for i, seed in enumerate(seeds):
        advice = "Correct it, or leave the column out with --ignore seed."
        fits = type(seed) is int and seed >= 0
        table.check(fits, i, SEED, "whole numbers of at least 0", advice)
    return seeds


def as_value(text: Any) -> Any:
    """A cell as a whole number, a number, true or false, or as it is.

    >>> as_value("3"), as_value("1e-3"), as_value("true"), as_value("adam")
    (3, 0.001, True, 'adam')
    """
    if not isinstance(text, str):
        return text
    words = {"true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def repeated_settings(networks: Sequence[Mapping[str, Any]]) -> int:
    """How many settings there are, where some are repeated; 0 where none is."""
    texts = [json.dumps(network["settings"], sort_keys=True) for network in networks]
    return len(set(texts)) if 1 < len(set(texts)) < len(texts) else 0


# -- files ---------------------------------------------------------------------------------------


def read_table(path: str | os.PathLike[str]) -> NetworkTable:
    """The rows of a file; paths in it are relative to its folder, or to the working folder."""
    file = as_path(path, what="table of networks")
    try:
        text = file.read_text(encoding="utf-8-sig")  # what spreadsheets write
    except FileNotFoundError as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} must exist. There is no such file in {os.getcwd()!r}."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} cannot be read as text: {error}. Save it as CSV in UTF-8."
        ) from error
    lines = text.splitlines()
    heading = lines[0] if lines else ""
    separator = max(SEPARATORS, key=heading.count)
    try:
        found = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise SpiritlevelError(
            f"The table {str(file)!r} cannot be read as CSV: {error}. Check its quotation marks."
        ) from error
    names = [name.strip() for name in found[0]] if found else []
    _check_heading(names, file)
    rows, places = [], []
    for place, cells in enumerate(found[1:], start=2):
        if not any(each.strip() for each in cells):
            continue
        if len(cells) != len(names):
            raise SpiritlevelError(
                f"Every line of {str(file)!r} must have {len(names)} values, as its first line. "
                f"Line {place} has {len(cells)}. Put a value with {separator!r} in it in quotes."
            )
        values = {n: each.strip() or None for n, each in zip(names, cells, strict=True)}
        rows.append(values | _placed(values, file.parent))
        places.append(f"line {place}")
    return NetworkTable(rows, places, repr(str(file)))


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV, which `read_table` reads back."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, columns))
    for row in rows:
        writer.writerow(["" if row.get(name) is None else cell(row[name]) for name in columns])
    return text.getvalue()


def _check_heading(names: Sequence[str], file: pathlib.Path) -> None:
    if not names or not all(names):
        raise SpiritlevelError(
            f"The first line of {str(file)!r} must name every column, such as "
            "checkpoint,lr,test_accuracy. "
            + ("One name is empty." if names else "The file is empty.")
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SpiritlevelError(
            f"The columns of {str(file)!r} must have different names. {twice[0]!r} is there twice. "
            "Rename one."
        )


def _placed(row: Mapping[str, str | None], folder: pathlib.Path) -> dict[str, str | None]:
    """Paths from the working folder: as they are, unless the file lies beside the table."""
    placed: dict[str, str | None] = {}
    for column in (CHECKPOINT, INITIAL):
        if (value := row.get(column)) is not None:
            beside = folder / os.path.expanduser(value)
            placed[column] = str(beside) if beside.exists() else os.path.expanduser(value)
    return placed
