"""The runs of a study, read once: the one source of its report, figures, live page and statistics.

    with Store.open("studies/digits") as store:
        population = Population.of(store)
    population.rows[0]["gap"]

The epochs of a run are kept in little memory: a study of 10,000 runs has a million of them.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion

from .outcome_names import KNOWN_OUTCOMES, LAST_EPOCH, TARGETS, TRAINING, VALIDATION
from .runs.outcomes import ALL_EPOCHS
from .runs.tasks import OF_THE_RUN
from .settings.sections import criterion
from .storage.store import Counts, Store

KEYS = ("run", "measure", "layer")  # of a measurement
MEASURED = ("measure", "layer", "value")  # what is read of it
ERRORS = ("exact", "stderr", "data_stderr")  # and of one at the end of training


@dataclasses.dataclass(frozen=True)
class Population:
    """All runs of a study with their numbers.

    Args:
        axes: names of the settings that the study varies: "variant" first if it has variants,
            then those of the grid. The seed is not among them.
        rows: one mapping per run: id ("run"), "status", axes, "seed", the numbers of the last
            epoch, the targets, and the measures of the whole network.
        measures: names of the measures of the whole network, sorted.
        epochs: by run, in order.
        layers: by measure, then run, then layer.
        while_training: by measure, then run, then epoch; finite values of the whole network.
        errors: by measure, then run: the standard error of the value, of the estimate and of the
            data together, where it is known.
        machines: by the number that the rows give.
        folder: of the study, for messages.
        missed: by run whose training did not come to what its study asks: what that is, in words.
        outcomes: where the networks were given and not trained, the names of what is known of
            them; None for a study that trains its networks or has a task.
    """

    axes: Sequence[str]
    rows: Sequence[Row]
    measures: Sequence[str]
    epochs: Mapping[str, Sequence[Row]] = dataclasses.field(default_factory=dict)
    layers: Mapping[str, Mapping[str, Mapping[str, float]]] = dataclasses.field(
        default_factory=dict
    )
    while_training: Mapping[str, Mapping[str, Mapping[int, float]]] = dataclasses.field(
        default_factory=dict
    )
    errors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    machines: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    folder: str = ""
    missed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outcomes: Sequence[str] | None = None

    @classmethod
    def of(cls, study: Store | Population) -> Population:
        """Read a store; a population is returned as it is."""
        if isinstance(study, Population):
            return study
        return cls.from_tables(
            study.study.axes,
            runs=study.rows("runs"),
            epochs=study.each_row("epochs"),
            measurements=study.each_row("measurements", (*MEASURED, *ERRORS)),
            epoch_measurements=study.each_row("epoch_measurements", ("epoch", *MEASURED)),
            machines=study.machines(),
            folder=str(study.folder),
            given=study.study.given(),
        )

    @classmethod
    def from_tables(
        cls,
        axes: Sequence[str],
        *,
        runs: Sequence[Row],
        epochs: Iterable[Row],
        measurements: Iterable[Row],
        epoch_measurements: Iterable[Row] = (),
        machines: Mapping[int, Mapping[str, Any]] | None = None,
        folder: str = "",
        given: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Population:
        """The population from the rows of a store's tables, each table gone through once.

        `given` has the outcomes of networks that were not trained here, and their name as
        "network", by run.
        """
        texts: dict[str, str] = {run["id"]: run["id"] for run in runs}  # one copy of each, not many
        epochs_of: dict[str, EpochRows] = {}
        for row in epochs:
            run = texts.setdefault(row["run"], row["run"])
            if run not in epochs_of:
                epochs_of[run] = EpochRows(run)
            epochs_of[run].append(row)
        values: dict[str, dict[str, float]] = {}
        layers: dict[str, dict[str, dict[str, float]]] = {}
        errors: dict[str, dict[str, float]] = {}
        for row in measurements:
            run, name, layer = (texts.setdefault(row[key], row[key]) for key in KEYS)
            if layer == "":
                values.setdefault(run, {})[name] = row["value"]
                if (error := _error_of(row)) is not None:
                    errors.setdefault(name, {})[run] = error
            else:
                layers.setdefault(name, {}).setdefault(run, {})[layer] = row["value"]
        while_training: dict[str, dict[str, dict[int, float]]] = {}
        for row in epoch_measurements:
            if row["layer"] == "" and math.isfinite(row["value"]):
                of_measure = while_training.setdefault(row["measure"], {})
                run = texts.setdefault(row["run"], row["run"])
                of_measure.setdefault(run, {})[row["epoch"]] = row["value"]
        rows = [
            _wide_row(each, epochs_of.get(each["id"], ()), values.get(each["id"], {}))
            | _known(values.get(each["id"], {}), (given or {}).get(each["id"], {}))
            for each in runs
        ]
        measures = sorted({name for of_run in values.values() for name in of_run})
        outcomes = None
        if given is not None:  # losses and accuracies were evaluated, and are no measures
            outcomes = _outcomes(rows, given)
            measures = [name for name in measures if name not in LAST_EPOCH]
        return cls(
            axes=list(axes),
            rows=rows,
            measures=measures,
            epochs=epochs_of,
            layers=layers,
            while_training=while_training,
            errors=errors,
            machines={} if machines is None else machines,
            folder=folder,
            missed={each["id"]: asked for each in runs if (asked := _missed(each))},
            outcomes=outcomes,
        )

    def varies(self, name: str) -> bool:
        """Whether the number is not the same in all runs that have it."""
        found = {row[name] for row in self.done if row.get(name) is not None}
        return len(found) > 1

    @functools.cached_property
    def targets(self) -> dict[str, str]:
        """Outcomes that measures can be judged by, and what each is; "" of a user's own."""
        if self.outcomes is None:
            return dict(TARGETS)
        names = [name for name in TARGETS if name in self.outcomes]
        names += [n for n in self.outcomes if n not in TARGETS and n not in TRAINING]
        return {name: TARGETS.get(name, "") for name in names}

    @functools.cached_property
    def done(self) -> list[Row]:
        """Runs that were finished, diverged ones too."""
        return [row for row in self.rows if row["status"] == "done"]

    @functools.cached_property
    def ended(self) -> list[Row]:
        """Runs that the statistics count: finished or failed."""
        return [row for row in self.rows if row["status"] in ("done", "failed")]

    @functools.cached_property
    def judged(self) -> list[Row]:
        """Runs that measures are judged by: those that ended and came to what the study asks.

        Where most did not, all that ended: their numbers are shown, without a verdict.
        """
        if self.mostly_missed:
            return self.ended
        return [row for row in self.ended if row["run"] not in self.missed]

    @property
    def mostly_missed(self) -> bool:
        """Whether more than half of the finished runs did not come to what the study asks."""
        return 2 * len(self.missed) > len(self.done)

    @property
    def not_judged(self) -> str:
        """How many runs are not judged because of that, as a sentence; "" for none."""
        if not self.missed:
            return ""
        asked = " or ".join(dict.fromkeys(self.missed.values()))
        said = f"{len(self.missed)} of {len(self.done)} networks did not come to {asked}"
        if self.mostly_missed:
            return f"{said}: no measure is judged, the numbers are of all networks."
        return f"{said}: they are shown and not judged."

    @functools.cached_property
    def counts(self) -> Counts:
        """How many runs are in each state."""
        numbers = {field.name: 0 for field in dataclasses.fields(Counts)}
        for row in self.rows:
            numbers[row["status"]] += 1
        return Counts(**numbers)

    @functools.cached_property
    def varied(self) -> list[str]:
        """The axes in which runs differ, and the seed last if it differs too."""
        return [
            axis
            for axis in (*self.axes, "seed")
            if len({json.dumps(row[axis]) for row in self.rows}) > 1
        ]

    def groups(self, axis: str) -> dict[str, list[int]]:
        """Places in `done` by the value of a setting.

        Numbers stand in ascending order, names in the order of the study, whichever runs are
        finished: so a value has the same place, and the same colour, in every view.
        """
        self.check("by", axis, [*self.axes, "seed"])
        appearance = {label(row[axis]): row[axis] for row in self.rows}
        numeric = [name for name, value in appearance.items() if _is_number(value)]
        numeric.sort(key=lambda name: float(appearance[name]))
        names = [name for name, value in appearance.items() if not _is_number(value)]
        places: dict[str, list[int]] = {name: [] for name in (*numeric, *names)}
        for place, row in enumerate(self.done):
            places[label(row[axis])].append(place)
        return {name: members for name, members in places.items() if members}

    def grouped_rows(self, axis: str) -> dict[str, list[Row]]:
        """The finished runs themselves, by the value of a setting."""
        return {
            value: [self.done[place] for place in places]
            for value, places in self.groups(axis).items()
        }

    def column(self, name: str) -> list[float]:
        """A number of each finished run: a measure, a target or one of the last epoch.

        nan where a run lacks it.
        """
        self.check("column", name, [*self.measures, *TARGETS, *LAST_EPOCH, *(self.outcomes or ())])
        values = (row.get(name) for row in self.done)
        return [math.nan if value is None else float(value) for value in values]

    def check(self, argument: str, name: str, choices: Sequence[str]) -> None:
        """Refuse a name that is not among the choices."""
        if name not in choices:
            raise SpiritlevelError(
                f"The {argument!r} must be one of {', '.join(choices) or 'none here'}. "
                f"Got {brief(name)}.{suggestion(name, choices)}"
            )


def label(value: object) -> str:
    """A setting's value as text.

    >>> label(0.001), label(True), label("sgd"), label(None)
    ('0.001', 'true', 'sgd', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value)


def targets_of(row: Mapping[str, Any]) -> dict[str, float]:
    """What the measures are to say something about, from losses and accuracies that are there."""
    targets = {}
    if "test_loss" in row and "train_loss" in row:
        targets["gap"] = row["test_loss"] - row["train_loss"]
    if "test_accuracy" in row and "train_accuracy" in row:
        targets["error_gap"] = row["train_accuracy"] - row["test_accuracy"]
    if "test_accuracy" in row:
        targets["test_error"] = 1.0 - row["test_accuracy"]
    return targets


def _wide_row(run: Row, epochs: Sequence[Row], measures: Mapping[str, float]) -> Row:
    row = {"run": run["id"], "status": run["status"]}
    row |= dict(json.loads(run["axes"])) | {"seed": run["seed"]}
    row |= {key: run[key] for key in OF_THE_RUN}
    if epochs:
        last = {key: value for key, value in epochs[-1].items() if key != "run"}
        row |= {k: v for k, v in last.items() if k not in VALIDATION or v is not None}
        row |= targets_of(last)
    return row | dict(measures)


def _missed(run: Row) -> str:
    """The level of training that a finished run did not come to, in words; "" for none."""
    if run["status"] != "done" or run["outcome"] != ALL_EPOCHS:
        return ""
    return criterion(json.loads(run["settings"]).get("stop", {}))


def _known(values: Mapping[str, float], given: Mapping[str, Any]) -> Row:
    """What is known of a given network: a number that came with it goes before our own.

    A gap is never the difference of one that came with it and one of our own: they may be of
    different samples.
    """
    if not given:
        return {}
    evaluated = {name: values[name] for name in LAST_EPOCH if name in values}
    return targets_of(evaluated) | evaluated | targets_of(given) | dict(given)


def _error_of(row: Mapping[str, Any]) -> float | None:
    """The standard error of a measurement; None where its estimate's is not known."""
    estimate = 0.0 if row.get("exact") else row.get("stderr")
    return None if estimate is None else math.hypot(estimate, row.get("data_stderr") or 0.0)


def _outcomes(rows: Sequence[Row], given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The outcomes that a user named, then those that follow from them or were evaluated."""
    named = dict.fromkeys(key for each in given.values() for key in each if key != "network")
    return [*named, *(n for n in KNOWN_OUTCOMES if n not in named and any(n in r for r in rows))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


Row = dict[str, Any]


class EpochRows(Sequence[Row]):
    """A run's epochs, in order. Each is a mapping, made when it is asked for.

    >>> rows = EpochRows("a", [{"run": "a", "epoch": 1, "train_loss": 0.5}])
    >>> rows[-1]
    {'run': 'a', 'epoch': 1, 'train_loss': 0.5}
    """

    def __init__(self, run: str, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.run = run
        self._numbers: dict[str, array.array[float]] = {}
        self._missing: tuple[str, ...] = ()  # columns without numbers: the study has no such data
        self._length = 0
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the next epoch. All epochs of a run have the same columns."""
        if not self._length:
            self._numbers = {
                name: array.array("q" if name == "epoch" else "d")
                for name, value in row.items()
                if name != "run" and value is not None
            }
            self._missing = tuple(name for name, value in row.items() if value is None)
        for name, numbers in self._numbers.items():
            numbers.append(row[name])
        self._length += 1

    def column(self, name: str) -> Sequence[float]:
        """One number per epoch; empty if the run has none under this name."""
        return self._numbers.get(name, ())

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        numbers = {name: column[index] for name, column in self._numbers.items()}
        return {"run": self.run} | numbers | dict.fromkeys(self._missing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def numbers_of(rows: Sequence[Mapping[str, Any]], name: str) -> Sequence[float]:
    """A column of a run's epochs, whose rows may be plain mappings; empty if it has no numbers."""
    if isinstance(rows, EpochRows):
        return rows.column(name)
    return [row[name] for row in rows if row.get(name) is not None]
