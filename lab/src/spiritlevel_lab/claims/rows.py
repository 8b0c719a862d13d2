"""Rows of runs: their columns, and their groups by what was varied."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.measures import names

from ..population.runs.outcomes import DIVERGED
from ..population.settings.definition import Study
from .experiment import Experiment, Row

HEAD = "head"
OUTCOMES = {  # what a population is asked about, always side by side: they disagree
    "gap": "gap of the losses",
    "error_gap": "gap of the accuracies",
    "test_error": "test error",
}
# The same number whichever layers are asked for.
WHICHEVER = (
    *("head.*", "softmax.*", "bound.*", "sensitivity.*", "norms.margin*"),
    *("activity.death", "activity.frequency"),
)

# Of the head too, where whole networks are measured: what paper 002's code compares, and its norm.
ALSO_OF_THE_HEAD = ("norms.weight", "relative.kappa_std")


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of one column; None where a run lacks it."""
    return [row.get(name) for row in rows]


def with_outcomes(rows: Sequence[Row]) -> list[Row]:
    """With the outcomes that follow from the accuracies of a run.

    >>> [row] = with_outcomes([{"gap": 0.5, "train_accuracy": 1.0, "test_accuracy": 0.75}])
    >>> row["error_gap"], row["test_error"]
    (0.25, 0.25)
    """
    return [{**_of_accuracies(row), **row} for row in rows]


def _of_accuracies(row: Row) -> dict[str, float]:
    train, test = row.get("train_accuracy"), row.get("test_accuracy")
    if test is None:
        return {}
    error = {"test_error": 1.0 - test}
    return error if train is None else error | {"error_gap": train - test}


def converged(rows: Sequence[Row]) -> list[Row]:
    """Runs whose training did not diverge: only those have measures."""
    return [row for row in rows if row.get("outcome") != DIVERGED]


def grouped(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    """Rows by the value of one column, values in order.

    >>> grouped([{"lr": 2}, {"lr": 1}, {"lr": 2}], "lr")
    {1: [{'lr': 1}], 2: [{'lr': 2}, {'lr': 2}]}
    """
    values = sorted({row[name] for row in rows})
    return {value: [row for row in rows if row[name] == value] for value in values}


def at_points(row: Row, name: str) -> list[float]:
    """NAME/1, NAME/2, … of a run, as far as it came."""
    values: list[float] = []
    while row.get(f"{name}/{len(values) + 1}") is not None:
        values.append(row[f"{name}/{len(values) + 1}"])
    return values


def missing_columns(experiment: Experiment, done: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that an experiment looks at and no run has."""
    return [c for c in experiment.columns if not any(c in row for row in done)]


def experiment_rows(
    experiment: Experiment, study: Study, done: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """The columns of finished runs that the experiment looks at; some run must have each of them.

    What makes up a setting follows, as far as the study varies it, and other measures, if it keeps
    them; where the study measures the head alone, their names say so.
    """
    if missing := missing_columns(experiment, done):
        raise SpiritlevelError(
            f"The runs of {experiment.name} must have the columns {', '.join(missing)}. No run "
            "has them: the store is of another version of this study. Run it again in a new folder."
        )
    kept = [c for c in names() if c not in experiment.columns] if experiment.catalogue else []
    more = {c: c for c in experiment.settings} | scoped(kept, study.measure_options)
    columns = {c: c for c in experiment.columns}
    columns |= {c: shown for c, shown in more.items() if any(c in row for row in done)}
    return tuple({shown: row.get(c) for c, shown in columns.items()} for row in done)


def of_the_head(measure: str) -> str:
    """How the column of a measure that was taken of the head alone is called, as of one layer.

    >>> of_the_head("norms.weight"), of_the_head("softmax.gini")
    ('norms.weight[head]', 'softmax.gini')
    """
    same = any(fnmatch.fnmatchcase(measure, pattern) for pattern in WHICHEVER)
    return measure if same else f"{measure}[{HEAD}]"


def scoped(measures: Iterable[str], options: Mapping[str, Any]) -> dict[str, str]:
    """The columns of measures, by name, in a study with these `measure_options`."""
    if options.get("layers") == HEAD:
        return {name: of_the_head(name) for name in measures}
    chosen = dict.fromkeys(measures)
    both = [*chosen, *(of_the_head(name) for name in ALSO_OF_THE_HEAD if name in chosen)]
    return {name: name for name in both}


def both_scopes(measures: Iterable[str]) -> list[str]:
    """The columns that a measure may stand in: of the whole network, and of its head alone."""
    return list(dict.fromkeys(c for name in measures for c in (name, of_the_head(name))))
