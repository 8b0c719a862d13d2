"""`spiritlevel check --device`: does a GPU compute in float32 what a CPU does in float64?

The expected values are those of reference.json. Everything is measured on the device in float32 and
must agree; TF32 and bfloat16 are coarser on purpose, so how far they are off is only shown.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .. import api
from ..analysis.reference_problems import ALL
from ..content import Cell, Column, Table
from ..errors import SpiritlevelError
from ..model.batches import map_tensors
from ..model.host import NO_FLOAT64
from ..records import VALUE

FORMAT = "spiritlevel-device-check-1"
TOLERANCE = 1e-4  # relative: float32 has 7 digits, and a few are lost in sums and differences
FASTER = {"cuda": ("tf32", "bf16")}  # arithmetic of a kind of device


@dataclasses.dataclass(frozen=True)
class Agreement:
    """A measure of a problem: what it should be, and what the device came to."""

    problem: str
    measure: str
    expected: float
    found: float

    @property
    def error(self) -> float:
        """Relative; nan where the device gave no number."""
        return abs(self.found - self.expected) / abs(self.expected)

    @property
    def agrees(self) -> bool:
        """Whether the error is within the tolerance; nan is not."""
        return self.error <= TOLERANCE


def compared(
    device: torch.device,
    expected: Mapping[str, Mapping[str, float]],
    *,
    arithmetic: str = "full",
    show: Callable[[int, int | None, str], None] | None = None,
) -> list[Agreement]:
    """Every number of the tiny problems, measured on the device in float32."""
    rows = []
    for i, (name, make) in enumerate(ALL.items()):
        if show is not None:
            show(i, len(ALL), name)
        problem = make(torch.float32)
        data = [map_tensors(lambda t: t.to(device), batch) for batch in problem.data]
        try:
            found = api.measure(
                problem.model.to(device),
                data,
                loss=problem.loss,
                measures=list(expected[name]),
                arithmetic=arithmetic,  # type: ignore[arg-type]
            )
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if isinstance(error, SpiritlevelError):
                raise
            cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise SpiritlevelError(
                f"The device {str(device)!r} could not measure {name!r}: {cause.rstrip('.')}. "
                "Update torch or the driver, or measure with --device cpu; --debug shows where."
            ) from error
        rows += [
            Agreement(name, measure, value, found[measure].value)
            for measure, value in expected[name].items()
        ]
    return rows


def worst(rows: Iterable[Agreement]) -> Agreement:
    """The one that is furthest off; no number at all is the furthest."""
    return max(rows, key=lambda row: math.inf if math.isnan(row.error) else row.error)


def name_of(device: torch.device) -> str:
    """What the device is, in words."""
    if device.type == "cuda":
        return f"{device}: {torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    if device.type in NO_FLOAT64:
        return f"{device} (which has no float64, so that the CPU computes)"
    return str(device)


def table(rows: Iterable[Agreement]) -> Table:
    """What was expected and found, number by number."""
    columns = [
        Column("measure"),
        Column("expected", form=VALUE),
        Column("got", form=VALUE),
        Column("error", form=".1e"),
        Column("verdict", kind="word"),
    ]
    cells: list[list[Cell]] = []
    before = ""
    for row in rows:
        if row.problem != before:  # a line of its own: beside the measures it would not fit
            cells.append([row.problem, None, None, None, None])
            before = row.problem
        verdict = "ok" if row.agrees else "WRONG"
        cells.append([f"  {row.measure}", row.expected, row.found, row.error, verdict])
    return Table(columns, cells)


def as_dict(rows: Iterable[Agreement], faster: Mapping[str, float], **more: Any) -> dict[str, Any]:
    """Everything for JSON; a number that is none is null."""
    found = [dataclasses.asdict(row) | {"error": row.error, "agrees": row.agrees} for row in rows]
    for row in found:
        row |= {key: None for key in ("found", "error") if not math.isfinite(row[key])}
    return {
        "format": FORMAT,
        **more,
        "tolerance": TOLERANCE,
        "rows": found,
        "largest_error": dict(faster),
    }
