"""Recorded results: a small file a scale, from which an experiment's page can be made again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SpiritlevelError
from ...files import write_atomically
from ...measures import names
from ...results import read_json
from ...study.storage.store import Store
from ...study.table import wide_rows
from ..experiment import Experiment
from ..registry import find

FORMAT = "spiritlevel-experiment-1"
DIGITS = 6  # of a recorded number: enough for every table, and a third of the size
# Presets, by how near they are to the papers.
SCALES = ("paper", "h200-low-rates", "h200", "", "quick")
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
        """Of its file, and of its figure."""
        return _stem(self.name, self.preset)

    def to_json(self) -> str:
        """A row a line, so that a change of one run is a change of one line."""
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
        known = ", ".join(map(repr, experiment.scaled_down))
        raise SpiritlevelError(
            f"The 'preset' argument of record must be one that {experiment.name} describes: "
            f"{known}. Got {preset!r}."
        )
    table = wide_rows(store)
    done = [row for row in table if row["status"] == "done"]
    if not done:
        raise SpiritlevelError(
            f"The study in {str(store.folder)!r} has no finished run yet: there is nothing to "
            f"record. Run `spiritlevel study resume {store.folder}` first."
        )
    layers = _layers(store, experiment.layers)
    kept = zip(done, rows_of(experiment, done), strict=True)
    rows = tuple(row | {name: layers[name].get(run["run"]) for name in layers} for run, row in kept)
    machines = {
        json.dumps({key: machine[key] for key in MACHINE if key in machine}, sort_keys=True)
        for machine in store.machines().values()
    }
    return Record(
        name=experiment.name,
        preset=preset,
        machines=tuple(json.loads(text) for text in sorted(machines)),
        seconds=sum(row["seconds"] or 0.0 for row in done),
        unfinished=len(table) - len(done),
        rows=rows,
        note=note,
    )


def _layers(store: Store, measures: Sequence[str]) -> dict[str, dict[str, float]]:
    """MEASURE[LAYER], by run."""
    found: dict[str, dict[str, float]] = {}
    for row in store.rows("measurements") if measures else ():
        if row["layer"] and row["measure"] in measures:
            name = f"{row['measure']}[{row['layer']}]"
            found.setdefault(name, {})[row["run"]] = row["value"]
    return {name: found[name] for name in sorted(found)}


def rows_of(
    experiment: Experiment, done: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Of finished runs the columns that the experiment looks at; each must be there in some run.

    Those of other measures follow, if it keeps them.
    """
    missing = [c for c in experiment.columns if not any(c in row for row in done)]
    if missing:
        raise SpiritlevelError(
            f"The runs of {experiment.name} must have the columns {', '.join(missing)}. No run "
            "has them: the store is of another version of this study. Run it again in a new folder."
        )
    columns = dict.fromkeys(experiment.columns)
    if experiment.catalogue:
        columns |= dict.fromkeys(c for c in names() if any(c in row for row in done))
    return tuple({c: row.get(c) for c in columns} for row in done)


def save(found: Record, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Write NAME.json, or NAME-PRESET.json, to the folder; its path."""
    path = pathlib.Path(folder) / f"{found.stem}.json"
    write_atomically(path, found.to_json().encode())
    return path


def load(folder: str | os.PathLike[str], name: str) -> list[Record]:
    """The records of an experiment, that nearest to the paper first; none if it was not run yet."""
    known = find(name).name
    paths = [pathlib.Path(folder) / f"{_stem(known, preset)}.json" for preset in SCALES]
    return [Record.from_json(p.read_text(encoding="utf-8")) for p in paths if p.is_file()]


def _stem(name: str, preset: str) -> str:
    return f"{name}-{preset}" if preset else name


def _short(value: Any) -> Any:
    """Fewer digits; what JSON cannot write becomes text, which `_number` reads back."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
