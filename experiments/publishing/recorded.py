"""Recorded results: one small file per scale, from which an experiment's page can be made again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import write_atomically
from spiritlevel.records.reading import read_json
from spiritlevel_lab import Population, Store
from spiritlevel_lab.claims.rows import experiment_rows, missing_columns
from spiritlevel_lab.papers.registry import find

FORMAT = "spiritlevel-experiment-1"
DIGITS = 6  # of a recorded number: enough for every table, and a third of the size
MACHINE = ("device", "threads", "trained", "spiritlevel", "torch", "python")  # not whose it is


@dataclasses.dataclass(frozen=True)
class Record:
    """The runs of an experiment, with the columns it looks at."""

    name: str
    preset: str  # "" is the study without a preset
    machines: tuple[dict[str, Any], ...]
    seconds: float  # of work, all runs together
    unfinished: int  # runs that failed or were not done
    rows: tuple[dict[str, Any], ...]
    note: str = ""  # about this recording

    @property
    def stem(self) -> str:
        """The name of its file and its figure, without the ending."""
        return stem(self.name, self.preset)

    def to_json(self) -> str:
        """JSON with one row per line, so that a change of one run is a change of one line."""
        columns = list(self.rows[0])
        head: dict[str, Any] = {
            "format": FORMAT,
            "name": self.name,
            "preset": self.preset,
            "note": self.note,
            "machines": list(self.machines),
            "seconds": round(self.seconds, 1),
            "unfinished": self.unfinished,
            "columns": columns,
        }
        rows = ",\n".join(
            json.dumps([_short(row[c]) for c in columns], ensure_ascii=False) for row in self.rows
        )
        text = json.dumps(head, indent=1, ensure_ascii=False, allow_nan=False)
        return f'{text[:-2]},\n "rows": [\n{rows}\n]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote."""
        return read_json(text, "Record", FORMAT, cls._from_dict)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Record:
        rows = tuple(
            {c: _number(v) for c, v in zip(data["columns"], row, strict=True)}
            for row in data["rows"]
        )
        return cls(
            name=data["name"],
            preset=data["preset"],
            machines=tuple(data["machines"]),
            seconds=data["seconds"],
            unfinished=data["unfinished"],
            rows=rows,
            note=data["note"],
        )


def record(store: Store, *, preset: str = "", note: str = "") -> Record:
    """What a finished study leaves for the record; the study names the experiment."""
    experiment = find(store.study.name)
    if preset not in experiment.scaled_down:
        described = ", ".join(map(repr, experiment.scaled_down))
        raise SpiritlevelError(
            f"The 'preset' argument of record must be one that {experiment.name} describes: "
            f"{described}. Got {preset!r}."
        )
    population = Population.of(store)
    done = population.done
    if not done:
        raise SpiritlevelError(
            f"The study in {str(store.folder)!r} has no finished run yet: there is nothing to "
            f"record. Run `spiritlevel study resume {store.folder}` first."
        )
    layers = _layers(population, experiment.layers)
    pairs = zip(done, experiment_rows(experiment, store.study, done), strict=True)
    rows = tuple(
        row | {name: layers[name].get(run["run"]) for name in layers} for run, row in pairs
    )
    machines = {
        json.dumps({key: machine[key] for key in MACHINE if key in machine}, sort_keys=True)
        for machine in store.machines().values()
    }
    return Record(
        name=experiment.name,
        preset=preset,
        machines=tuple(json.loads(text) for text in sorted(machines)),
        seconds=sum(row["seconds"] or 0.0 for row in done),
        unfinished=len(population.rows) - len(done),
        rows=rows,
        note=note,
    )


def _layers(population: Population, measures: Sequence[str]) -> dict[str, dict[str, float]]:
    """Values of single layers as columns named MEASURE[LAYER], by run."""
    values: dict[str, dict[str, float]] = {}
    for measure in measures:
        for run, by_layer in population.layers.get(measure, {}).items():
            for layer, value in by_layer.items():
                values.setdefault(f"{measure}[{layer}]", {})[run] = value
    return {name: values[name] for name in sorted(values)}


def save(recorded: Record, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Write NAME.json, or NAME-PRESET.json, to the folder; its path."""
    path = pathlib.Path(folder) / f"{recorded.stem}.json"
    write_atomically(path, recorded.to_json().encode())
    return path


def stem(name: str, preset: str) -> str:
    """How files of an experiment at this scale are named, without the ending."""
    return f"{name}-{preset}" if preset else name


def _short(value: Any) -> Any:
    """Fewer digits; what JSON cannot write becomes text, which `_number` reads back."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value


# Presets, by how near they are to the papers.
SCALES = (
    "paper",
    "h200-accuracy",
    "h200-settings",
    "h200-full",
    "h200-imagenet",
    "h200-cifar100",
    "h200-trained",
    "h200-narrow",
    "h200-augmented",
    "h200-after-norm",
    "h200-low-rates",
    "paper-rates",
    "h200",
    "one-core",
    "small-trained",
    "",
    "quick",
)


def load(folder: str | os.PathLike[str], name: str) -> list[Record]:
    """The records of an experiment, that nearest to the paper first; none if it was not run yet.

    One that looks at the rows of another experiment leaves out those without its own columns.
    """
    experiment = find(name)
    paths = [pathlib.Path(folder) / f"{stem(experiment.study, preset)}.json" for preset in SCALES]
    found = [Record.from_json(p.read_text(encoding="utf-8")) for p in paths if p.is_file()]
    own = experiment.study == experiment.name
    return [each for each in found if own or not missing_columns(experiment, each.rows)]
