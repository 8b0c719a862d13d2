"""The reference values, and those that this installation computes.

Tiny problems are measured in float64 and a network on the embedded digits in float32, all with
fixed seeds, and compared with reference.json. `spiritlevel check --json` writes that file.

With `--device` the tiny problems are measured there in float32, and must agree with these. TF32 and
bfloat16 are coarser on purpose, so how far they are off is only shown.
"""

from __future__ import annotations

import dataclasses
import json as json_text
import math
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

import torch

from ..ground.errors import SpiritlevelError
from ..ground.version import __version__
from ..inputs.data import digits
from ..inputs.models import build
from ..model.batches import map_tensors
from ..model.host import NO_FLOAT64
from ..records.content import ERROR, VALUE, Cell, Column, Table
from ..verbs import measuring as api
from ..verbs.reference_problems import ALL

FORMAT = "spiritlevel-reference-1"
DIGITS = "digits_mlp"
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}  # relative
# What is asked of eigenvalues: they are then more precise than the tolerance by far.
ITERATED = {torch.float64: 1e-6, torch.float32: 1e-4}
# Attention has no exact trace: its measures are those that every machine finds without probes.
CHOSEN = {"attention": ["curvature.ggn_trace", "curvature.lambda_max", "head.*", "softmax.gini"]}
DEVICE_FORMAT = "spiritlevel-device-check-1"
DEVICE_TOLERANCE = (
    1e-4  # relative: float32 has 7 digits, and a few are lost in sums and differences
)
FASTER = {"cuda": ("tf32", "bf16")}  # arithmetic of a kind of device
Values = dict[str, dict[str, float]]  # by problem and measure


def measured() -> Values:
    """The values that this installation computes."""
    values = {
        name: _values(problem.model, problem.data, problem.loss, CHOSEN.get(name))
        for name, problem in ((name, make(torch.float64)) for name, make in ALL.items())
    }
    model = build("mlp", seed=0).eval()
    return values | {DIGITS: _values(model, [digits("test")], "cross_entropy")}


def _values(
    model: torch.nn.Module, data: Any, loss: str, measures: list[str] | None = None
) -> dict[str, float]:
    rtol = ITERATED[next(model.parameters()).dtype]
    report = api.measure(model, data, loss=loss, measures=measures, rtol=rtol)
    return {name: m.value for name, m in report.items()}


def reference() -> dict[str, Any]:
    """The values that are expected."""
    text = resources.files(__package__).joinpath("reference.json").read_text(encoding="utf-8")
    return dict(json_text.loads(text))


def differences(found: Values, expected: Values) -> dict[tuple[str, str], float]:
    """Relative errors above the tolerance, by problem and measure.

    >>> differences({"relu_mlp": {"a": 2.0, "b": 1.0}}, {"relu_mlp": {"a": 2.0, "b": 1.25}})
    {('relu_mlp', 'b'): 0.2}
    """
    wrong = {}
    for problem, values in expected.items():
        for name, value in values.items():
            error = abs(found[problem].get(name, math.nan) - value) / abs(value)
            if not error <= TOLERANCES[_dtype(problem)]:  # also if it is NaN
                wrong[problem, name] = error
    return wrong


def versions() -> dict[str, str]:
    """Versions that the numbers depend on."""
    python = platform.python_version()
    return {"spiritlevel": __version__, "torch": torch.__version__, "Python": python}


def versions_in_words(found: dict[str, str]) -> str:
    """Names with their versions, in a line."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def table(found: Values, wrong: dict[tuple[str, str], float]) -> Table:
    """How many numbers of each problem agree with the reference."""
    rows: list[list[Cell]] = []
    for problem, values in found.items():
        off = sum(place[0] == problem for place in wrong)
        tolerance = f"{TOLERANCES[_dtype(problem)]:.0e}"
        rows.append([problem, len(values), len(values) - off, tolerance])
    return Table(["problem", "numbers", "agree", "tolerance"], rows)


def _dtype(problem: str) -> str:
    return "float32" if problem == DIGITS else "float64"


# -- on a device -----------------------------------------------------------------------------


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
        return self.error <= DEVICE_TOLERANCE


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
                rtol=ITERATED[torch.float32],
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


def device_table(rows: Iterable[Agreement]) -> Table:
    """What was expected and found, number by number."""
    columns = [
        Column("measure"),
        Column("expected", digits=VALUE),
        Column("got", digits=VALUE),
        Column("error", digits=ERROR),
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
        "format": DEVICE_FORMAT,
        **more,
        "tolerance": DEVICE_TOLERANCE,
        "rows": found,
        "largest_error": dict(faster),
    }
