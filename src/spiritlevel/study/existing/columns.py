"""What the columns of a table of networks mean, and whether their values can be that.

These names are understood by themselves; all others are declared as settings or outcomes:

    checkpoint      a file or folder with the weights; every row has one
    name            what the network is called in reports (default: from its checkpoint)
    model           a built-in name or module:function, where the networks differ in it
    initial         a checkpoint from before training, for measures such as norms.distance
    seed            of its training; runs that differ in nothing else are one setting
    train_loss, train_accuracy, test_loss, test_accuracy, gap, error_gap, test_error: outcomes
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError, suggestion
from ...measures import names as measure_names
from ..population import KNOWN_OUTCOMES, targets_of
from ..runs.tasks import OF_THE_RUN

CHECKPOINT, NAME, MODEL, INITIAL, SEED = "checkpoint", "name", "model", "initial", "seed"
UNDERSTOOD = (CHECKPOINT, NAME, MODEL, INITIAL, SEED)
SHARES = ("train_accuracy", "test_accuracy", "test_error")
TAKEN = ("run", "status", "network", "variant", *OF_THE_RUN)  # of a row in a report
# A table rounds its numbers: a gap may differ from its losses by as much as they were rounded.
ROUNDED = 1e-3
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Roles:
    """How the columns that are not understood by themselves are meant."""

    settings: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    arguments: Sequence[str] = ()  # settings that the model's factory takes, too
    ignored: Sequence[str] = ()

    @property
    def all_settings(self) -> list[str]:
        """The settings, and those that are arguments of the model; the seed is none of them."""
        return [n for n in dict.fromkeys((*self.settings, *self.arguments)) if n != SEED]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a table, or what was found in folders.

    Args:
        rows: by column; values are texts, numbers, or None for an empty cell.
        places: what each row is called in errors, such as "line 3".
        source: what all of it is called, such as "'runs.csv'".
        written: whether a person wrote the columns: then each must have a meaning.
    """

    rows: Sequence[Row]
    places: Sequence[str]
    source: str
    written: bool = True

    @property
    def columns(self) -> list[str]:
        """All of them, in order of appearance."""
        return list(dict.fromkeys(key for row in self.rows for key in row))


def read_networks(table: Table, roles: Roles) -> list[dict[str, Any]]:
    """The networks of a study, without fingerprints; refuses what cannot be meant."""
    if not table.rows:
        raise SpiritlevelError(f"{table.source} has no networks. Add a row for each checkpoint.")
    _check_roles(table, roles)
    names = _names(table)
    settings = _typed(table, roles.all_settings)
    outcomes = [n for n in (*KNOWN_OUTCOMES, *roles.outcomes) if n in table.columns]
    outcomes = [name for name in dict.fromkeys(outcomes) if name not in roles.ignored]
    networks = []
    for i, row in enumerate(table.rows):
        of_row = {name: settings[name][i] for name in settings}
        model = {name: of_row[name] for name in roles.arguments}
        if row.get(MODEL) is not None and MODEL not in roles.ignored:
            model["name"] = str(row[MODEL])
        known = {name: _outcome(table, i, name) for name in outcomes}
        _check_gap(table, i, known)
        task = {CHECKPOINT: str(row[CHECKPOINT])}
        if row.get(INITIAL) is not None and INITIAL not in roles.ignored:
            task[INITIAL] = str(row[INITIAL])
        networks.append(
            {"name": names[i], "settings": of_row, "outcomes": known, "model": model, "task": task}
            | {"seed": _seed(table, i, roles)}
        )
    _check_places(table)
    return networks


# -- which columns there are ---------------------------------------------------------------------


def _check_roles(table: Table, roles: Roles) -> None:
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


def _check_places(table: Table) -> None:
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


def _names(table: Table) -> list[str]:
    """From the table, or as much of each path as tells them apart."""
    if NAME in table.columns:
        for row, place in zip(table.rows, table.places, strict=True):
            if row.get(NAME) is None:
                raise _empty(table, place, NAME)
        return [str(row[NAME]) for row in table.rows]
    for row, place in zip(table.rows, table.places, strict=True):
        if row.get(CHECKPOINT) is None:
            raise _empty(table, place, CHECKPOINT)
    paths = [os.path.abspath(str(row[CHECKPOINT])) for row in table.rows]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, folder) for path in paths]


def _typed(table: Table, names: Sequence[str]) -> dict[str, list[Any]]:
    """Settings: numbers where all of a column are numbers, else texts."""
    columns: dict[str, list[Any]] = {}
    for name in names:
        values = []
        for row, place in zip(table.rows, table.places, strict=True):
            if row.get(name) is None:
                raise _empty(table, place, name)
            values.append(row[name])
        read = [as_value(value) for value in values]
        is_one_kind = len({isinstance(value, str) for value in read}) == 1
        columns[name] = read if is_one_kind else [str(value) for value in values]
    return columns


def _outcome(table: Table, i: int, name: str) -> float:
    row, place = table.rows[i], table.places[i]
    if row.get(name) is None:
        raise _empty(table, place, name)
    value = as_value(row[name])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise SpiritlevelError(
            f"The column {name!r} must hold finite numbers. {place} of {table.source} has "
            f"{row[name]!r}. Correct it, leave the row out, or leave the column out with --ignore "
            f"{name}."
        )
    if name in SHARES and not 0 <= value <= 1:
        raise SpiritlevelError(
            f"The column {name!r} must hold shares from 0 to 1. {place} of {table.source} has "
            f"{row[name]!r}. Divide percentages by 100, or give the column another name and "
            "--outcome."
        )
    return float(value)


def _check_gap(table: Table, i: int, known: Mapping[str, float]) -> None:
    """Refuse numbers that contradict each other: a gap is a difference of two losses."""
    for name, value in targets_of(known).items():
        if name in known and abs(known[name] - value) > ROUNDED * max(1.0, abs(value)):
            raise SpiritlevelError(
                f"The column {name!r} is {known[name]:g} in {table.places[i]} of {table.source}, "
                f"and the losses or accuracies beside it make it {value:g}. A gap is test loss − "
                "training loss, an error gap training − test accuracy, a test error 1 − test "
                "accuracy. Rename what is something else, and give it with --outcome."
            )


def _seed(table: Table, i: int, roles: Roles) -> int:
    if SEED not in table.columns or SEED in roles.ignored:
        return 0
    value = table.rows[i].get(SEED)
    read = as_value(value)
    if type(read) is not int or read < 0:
        raise SpiritlevelError(
            f"The column 'seed' must hold whole numbers of at least 0. {table.places[i]} of "
            f"{table.source} has {value!r}. Correct it, or leave the column out with --ignore seed."
        )
    return read


def _empty(table: Table, place: str, name: str) -> SpiritlevelError:
    return SpiritlevelError(
        f"The column {name!r} must have a value in every row. {place} of {table.source} has none. "
        f"Fill it in, or leave the row out{'' if name == CHECKPOINT else ' or the column'}."
    )


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
