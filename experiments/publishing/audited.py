"""Recorded audits of networks that the experiments are made with: what their measures are worth."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from spiritlevel.analysis.audit import Audit, Kind
from spiritlevel.content import Cell, Table
from spiritlevel.errors import SpiritlevelError
from spiritlevel.files import write_atomically
from spiritlevel.papers.registry import find, names
from spiritlevel.records import read_json

FORMAT = "spiritlevel-experiment-audit-1"
FOLDER = "audits"
WORDS: dict[Kind, str] = {
    "comparable": "comparable",
    "confidence": "comparable at equal confidence",
    "nearly": "nearly comparable",
    "scale": "not comparable",
    "untested": "not tested for all symmetries",
    "open": "not decided",
    "confounder": "not a flatness measure",
}


@dataclasses.dataclass(frozen=True)
class AuditRecord:
    """Of one network: by measure the verdict, and the largest factor with the move that made it."""

    network: str  # in words
    samples: int
    moves: tuple[str, ...]  # those that leave the function as it is
    verdicts: dict[str, tuple[Kind, float | None, str]]  # None: no move changed it

    @classmethod
    def of(cls, audit: Audit, network: str) -> AuditRecord:
        """The part of an audit that is recorded."""
        return cls(
            network,
            int(audit.original.settings["num_samples"]),
            tuple(audit.preserving),
            {
                name: (verdict.kind, *_worst(audit, name))
                for name, verdict in audit.verdicts.items()
            },
        )

    def to_json(self) -> str:
        """As JSON text, which `from_json` reads back."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AuditRecord:
        """Read what `to_json` wrote."""
        return read_json(text, "AuditRecord", FORMAT, cls._from_dict)

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> AuditRecord:
        verdicts = {
            name: (kind, factor, move) for name, (kind, factor, move) in data["verdicts"].items()
        }
        return cls(data["network"], data["samples"], tuple(data["moves"]), verdicts)


def _worst(audit: Audit, measure: str) -> tuple[float | None, str]:
    """The factor farthest from 1 of the moves that leave the function as it is."""
    factors = {
        move: audit.factor(measure, move)
        for move in audit.preserving
        if audit.has_moved(measure, move)
    }
    finite = {m: f for m, f in factors.items() if f > 0 and math.isfinite(f)}
    if not finite:
        return None, ""
    move = max(finite, key=lambda m: abs(math.log(finite[m])))
    return float(f"{finite[move]:.3g}"), move


def save(recorded: AuditRecord, results: str | os.PathLike[str], name: str) -> pathlib.Path:
    """Write NAME.json to the audits below the folder of results; its path."""
    path = pathlib.Path(results) / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, recorded.to_json().encode())
    return path


def load_all(results: str | os.PathLike[str]) -> list[AuditRecord]:
    """All that were recorded, by name of the file."""
    paths = sorted((pathlib.Path(results) / FOLDER).glob("*.json"))
    try:
        return [AuditRecord.from_json(path.read_text(encoding="utf-8")) for path in paths]
    except OSError as error:
        raise SpiritlevelError(f"A recorded audit cannot be read: {error}.") from error


def audit_table(records: Sequence[AuditRecord]) -> Table:
    """The measures that experiments rest on, and what they are worth in each network."""
    used = sorted({measure for name in names() for measure in find(name).measures})
    rows: list[Sequence[Cell]] = [
        [measure, *(_cell(record, measure) for record in records)]
        for measure in used
        if any(measure in record.verdicts for record in records)
    ]
    return Table(("measure", *(record.network for record in records)), rows)


def _cell(record: AuditRecord, measure: str) -> Cell:
    if measure not in record.verdicts:
        return None
    kind, factor, move = record.verdicts[measure]
    verdict = WORDS[kind]
    return verdict if factor is None else f"{verdict} ({factor:g} times under {move})"
