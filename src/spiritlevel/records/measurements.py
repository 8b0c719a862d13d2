"""Records: a value with its error, what it cost, and a report of several."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ..ground.errors import SpiritlevelError, brief, require
from ..ground.plain_text import visible
from .notebooks import Shown, footnotes, table
from .reading import (
    Misread,
    parse_json,
    read_as,
    read_fields,
    read_settings,
)

# Called while something long runs: how much is done, of how much in all (None where that is not
# known), and what is being done. The counts start again at 0 with every part of the work.
Progress: TypeAlias = Callable[[int, int | None, str], None]


MOST_NAMES = 3  # of measures in a line below the table
NEED = re.compile(r"The measure '[^']+' needs ((?:[^.:]|[.:](?! ))+)")  # how an error begins
SHORT_NOTE = 40  # characters that stand beside a number; longer notes stand below the table
NONFINITE_TEXT = (
    "The value is not a finite number: it overflows, or the loss does. Measure in float64, or look "
    "at the network's outputs."
)


class Status(enum.Enum):
    """How far a value can be trusted; its `text` says what to do next."""

    OK = "ok"
    GGN = "ggn"
    NOT_CONVERGED = "not_converged"
    UNCONFIRMED = "unconfirmed"  # a second look came to another value
    NONFINITE = "nonfinite"


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work counted per sample: 9 backward passes over 1,000 samples count 9,000.

    >>> (Cost(forwards=10) + Cost(forwards=5, backwards=20)).passes(5)
    '3 forwards, 4 backwards'
    """

    forwards: int = 0
    backwards: int = 0
    products: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.products + other.products,
        )

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.forwards - other.forwards,
            self.backwards - other.backwards,
            self.products - other.products,
        )

    def passes(self, num_samples: int) -> str:
        """As text, in passes over a data set of `num_samples`."""
        parts = []
        for name, count in dataclasses.asdict(self).items():
            number = f"{count / num_samples:.3g}"
            if count:
                parts.append(f"{number} {name.removesuffix('s') if number == '1' else name}")
        return ", ".join(parts) or "nothing"


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement:
    """One number with everything needed to interpret it.

    `exact` says that `value` is the quantity itself up to round-off. Otherwise `stderr` (the
    standard error of the probes) is given with the interval it leads to, or `residual` (an
    eigenvalue lies within it), or `status` says which other quantity this is.
    `data_stderr` is the sampling error: how much other data would change the value.
    """

    name: str
    value: float
    exact: bool
    quantity: str = ""  # of what matrix, where that is in question: "Hessian" or "GGN"
    stderr: float | None = None
    interval: tuple[float, float] | None = None  # at the confidence in `settings`
    residual: float | None = None
    data_stderr: float | None = None
    status: Status = Status.OK
    text: str = ""
    cost: Cost = Cost()
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) and self.status in (Status.OK, Status.GGN):
            # No number is no result, however it was computed.
            object.__setattr__(self, "status", Status.NONFINITE)
            object.__setattr__(self, "exact", False)
            how = f"{self.text.rstrip('.')}. " if self.text else ""
            object.__setattr__(self, "text", f"{how}{NONFINITE_TEXT}")
        unknown = self.stderr is None and self.residual is None
        if not self.exact and unknown and self.status is Status.OK:
            raise SpiritlevelError(
                f"The measurement {self.name!r} must carry a stderr or a residual, be exact, or "
                f"have a status that says what it is. Got value={self.value!r} with neither."
            )

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        text = f", {self.text}" if self.text else ""
        return visible(f"Measurement({self.name} = {self.value:.6g}, {self.mark}{text})")

    @property
    def mark(self) -> str:
        """How far the value can be trusted, for the table: "exact", "± 0.1", "not_converged"."""
        if self.exact:
            return "exact"
        error = self.residual if self.stderr is None else self.stderr
        if error is None or self.status is Status.NOT_CONVERGED:
            return self.status.value
        ggn = "ggn " if self.status is Status.GGN else ""
        return f"{ggn}± {error:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON; non-finite floats become strings."""
        out = dataclasses.asdict(self)
        out["status"] = self.status.value
        for key in FLOATS:
            out[key] = to_json_float(out[key])
        if self.interval is not None:
            out["interval"] = [to_json_float(end) for end in self.interval]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse of `to_dict`."""
        m = _consistent(read_fields(cls, data, "the measurement"))
        read_settings(m.settings, f"the settings of {m.name!r}", need=None)
        return m


def _consistent(m: Measurement) -> Measurement:
    """Refuse what no measurement can be: it was edited, or damaged."""
    for name in FLOATS[1:]:
        if -math.inf < (getattr(m, name) or 0.0) < 0:
            raise Misread(f"the {name} of {m.name!r} is negative")
    if m.interval is not None and m.interval[0] > m.interval[1]:
        raise Misread(f"the interval of {m.name!r} ends before it starts")
    return m


FLOATS = ("value", "stderr", "residual", "data_stderr")


def to_json_float(value: float | None) -> float | str | None:
    """JSON has no nan or inf; a string survives every parser and `float` reads it back."""
    return value if value is None or math.isfinite(value) else str(value)


REPORT_FORMAT = "spiritlevel-report-1"
_PARTS = {  # of a report in a file
    "settings": Mapping[str, Any],
    "cost": Cost,
    "measures": Mapping[str, Any],
    "layers": Mapping[str, Mapping[str, Any]],
}
Read = TypeVar("Read")
# What a file with another content than was written may lead to; RuntimeError is torch's.
_BY_CONTENT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def read_json(
    text: str, what: str, form: str, build: Callable[[Any], Read], *, unnamed: bool = False
) -> Read:
    """What `to_json` of the class `what` wrote, made by `build` from the parsed text.

    `unnamed` says that earlier versions wrote files which do not name their format.
    """
    try:
        data = read_as(Mapping[str, Any], parse_json(text), "the content")
        if data.get("format", form if unnamed else None) != form:
            raise Misread(f"its format is {brief(data.get('format'))}")
        return build(data)
    except _BY_CONTENT as error:
        cause = str(error) if isinstance(error, SpiritlevelError) else repr(error)
        raise SpiritlevelError(
            f"The 'text' argument of {what}.from_json must be what {what}.to_json wrote (format "
            f"{form!r}). Reading it failed with: {cause.rstrip('.')}. Write it again with "
            f"{what}.to_json()."
        ) from error


class Report(Shown, Mapping[str, Measurement]):
    """Measurements by name, and per layer where a measure has layers.

    `report["relative.kappa"].value`, `report.layers["relative.kappa"]["fc"].value`
    """

    def __init__(
        self,
        measurements: Mapping[str, Measurement],
        *,
        layers: Mapping[str, Mapping[str, Measurement]],
        settings: Mapping[str, Any],
        cost: Cost,
    ) -> None:
        self._measurements = dict(measurements)
        self.layers = {name: dict(rows) for name, rows in layers.items()}
        self.settings = dict(settings)
        self.cost = cost

    def __getitem__(self, name: str) -> Measurement:
        try:
            return self._measurements[name]
        except KeyError:
            have = ", ".join(self._measurements)
            raise KeyError(f"This report has no {name!r}. It has: {have}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._measurements)

    def __len__(self) -> int:
        return len(self._measurements)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={m.value:.4g}" for name, m in list(self.items())[:3])
        more = f", and {len(self) - 3} more" if len(self) > 3 else ""
        return visible(f"Report({values}{more}; {self.settings['num_samples']} samples)")

    def __str__(self) -> str:
        heading, rows, below = self._table()
        widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(4)]
        lines = []
        for name, value, data, mark, text in (heading, *rows):
            cells = (
                name.ljust(widths[0]),
                value.rjust(widths[1]),
                data.rjust(widths[2]),
                mark.ljust(widths[3]),
                text,
            )
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "-" * len(lines[0]))
        return visible("\n".join([*lines, *below]), keep="\n")

    def _repr_html_(self) -> str:
        return table(*self._table())

    def _table(self) -> tuple[list[str], list[list[str]], list[str]]:
        """Heading, rows, and the lines below; long notes are footnotes."""
        texts, notes = footnotes([m.text for m in self.values()], SHORT_NOTE)
        rows = []
        for (name, m), text in zip(self.items(), texts, strict=True):
            data = "" if m.data_stderr is None else f"{m.data_stderr:.2g}"
            rows.append([name, f"{m.value:.6g}", data, m.mark, text])
        n = int(self.settings["num_samples"])
        below = [*notes, f"{n} samples, {self.cost.passes(n)} over the data"]
        for name in ("autocast", "measured_on"):
            if name in self.settings:
                below.append(f"{name.replace('_', ' ')}: {self.settings[name]}")
        if "frozen" in self.settings:
            below.append(f"frozen, so not measured: {self.settings['frozen']}")
        below += _left_out(self.settings.get("left_out", {}))
        return ["measure", "value", "± data", "", "note"], rows, below

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types."""
        return {
            "format": REPORT_FORMAT,
            "settings": self.settings,
            "cost": dataclasses.asdict(self.cost),
            "measures": {name: m.to_dict() for name, m in self.items()},
            "layers": {
                name: {layer: m.to_dict() for layer, m in rows.items()}
                for name, rows in self.layers.items()
            },
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """The report as JSON text; `Report.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote."""
        return read_json(text, "Report", REPORT_FORMAT, cls.from_dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of `to_dict`."""
        data = read_as(Mapping[str, Any], data, "the report")
        if data.get("format", REPORT_FORMAT) != REPORT_FORMAT:
            raise Misread(f"the report's format is {brief(data['format'])}")
        if missing := [key for key in _PARTS if key not in data]:
            raise Misread(f"the report has no {missing[0]!r}")
        settings = read_settings(data["settings"], "the report's settings")
        measures, layers = (
            read_as(_PARTS[name], data[name], f"the report's {name}")
            for name in ("measures", "layers")
        )
        return cls(
            {name: Measurement.from_dict(m) for name, m in measures.items()},
            layers={
                name: {layer: Measurement.from_dict(m) for layer, m in rows.items()}
                for name, rows in layers.items()
            },
            settings=settings,
            cost=read_fields(Cost, data["cost"], "the report's cost"),
        )

    def to_frame(self) -> Any:
        """A pandas DataFrame: one row per measure and layer (the network itself has layer "")."""
        pandas = require("pandas", what="Report.to_frame", extra="frames")
        rows = [("", m) for m in self.values()]
        rows += [(layer, m) for table in self.layers.values() for layer, m in table.items()]
        columns = ("value", "exact", "stderr", "residual", "data_stderr", "text")
        return pandas.DataFrame(
            [
                {"measure": m.name, "layer": layer}
                | {column: getattr(m, column) for column in columns}
                | {"status": m.status.value}
                for layer, m in rows
            ]
        )


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """Which measures a pattern matched in vain, and what each of them needs; a line a reason.

    >>> _left_out({"a.b": "The measure 'a.b' needs a softmax. Got none.", "a.c": "No."})
    ['left out, since it needs a softmax: a.b', 'left out, since it does not apply: a.c']
    """
    names_by_need: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found = NEED.match(reason)
        names_by_need.setdefault(found[1] if found else "", []).append(name)
    lines = []
    for need, names in names_by_need.items():
        several = len(names) > 1
        if need:
            why = f"{'they need' if several else 'it needs'} {need}"
        else:
            why = "they do not apply" if several else "it does not apply"
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"left out, since {why}: {', '.join(names[:MOST_NAMES])}{more}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns under their headings: the first to the left, the others to the right.

    >>> print(aligned([("measure", "a"), ("head.trace", "1.5")]))
    measure       a
    ---------------
    head.trace  1.5
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)
