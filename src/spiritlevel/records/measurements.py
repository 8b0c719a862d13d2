"""Records: a value with its error, what it cost, and a report of several."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from ..ground.errors import SpiritlevelError, require
from ..ground.plain_text import visible
from .content import ERROR, VALUE, Column, Notes, Part, Table, Uncertain, number
from .notebooks import Shown
from .reading import Misread, Plain, Saved, read_settings

# Called while something long runs: how much is done, of how much in all (None where that is not
# known), and what is being done. The counts start again at 0 with every part of the work.
Progress: TypeAlias = Callable[[int, int | None, str], None]


MOST_NAMES = 3  # of measures in a line below the table
NEED = re.compile(r"The measure '[^']+' needs ((?:[^.:]|[.:](?! ))+)")  # how an error begins
PRICE = re.compile(r"would cost about (\S+) (forward-backwards), .* the budget of (\S+)\. ")
SAMPLING_ERROR = "the sampling error: how much other data would change the value"
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

    @property
    def forward_backwards(self) -> float:
        """As forward-backwards of a sample, of which a product with the Hessian takes four thirds.

        >>> Cost(forwards=10, backwards=10).forward_backwards
        10.0
        """
        return (self.forwards + 2 * self.backwards + 4 * self.products) / 3

    def passes(self, num_samples: int) -> str:
        """As text, in passes over a data set of `num_samples`."""
        parts = []
        for name, count in dataclasses.asdict(self).items():
            times = number(count / num_samples, 3)
            if count:
                parts.append(f"{times} {name.removesuffix('s') if times == '1' else name}")
        return ", ".join(parts) or "nothing"


@dataclasses.dataclass(frozen=True, repr=False)
class Measurement(Plain):
    """One number with everything needed to interpret it.

    `exact` says that `value` is the quantity itself up to round-off. Otherwise `stderr` (the
    standard error of the probes) is given with the interval it leads to, or `residual` (how far an
    iteration may be off), or `status` says which other quantity this is.
    `data_stderr` is the sampling error: how much other data would change the value.
    """

    CALLED: ClassVar = "the measurement"

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
        return visible(f"Measurement({self.name} = {number(self.value, VALUE)}, {self.mark}{text})")

    @property
    def with_errors(self) -> Uncertain:
        """The value, for showing it with the digits that all of its errors allow."""
        return Uncertain(self.value, self.stderr, self.residual, self.data_stderr)

    @property
    def mark(self) -> str:
        """How far the value can be trusted, for the table: "exact", "± 0.1", "not_converged"."""
        if self.exact:
            return "exact"
        error = self.residual if self.stderr is None else self.stderr
        if error is None or self.status is Status.NOT_CONVERGED:
            return self.status.value
        ggn = "ggn " if self.status is Status.GGN else ""
        return f"{ggn}± {number(error, ERROR)}"

    def check_parts(self) -> None:
        """Refuse what no measurement can be: it was edited, or damaged."""
        for name in ("stderr", "residual", "data_stderr"):
            if -math.inf < (getattr(self, name) or 0.0) < 0:
                raise Misread(f"the {name} of {self.name!r} is negative")
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise Misread(f"the interval of {self.name!r} ends before it starts")
        read_settings(self.settings, f"the settings of {self.name!r}", need=None)


@dataclasses.dataclass(eq=False, repr=False)
class Report(Shown, Saved, Mapping[str, Measurement]):
    """Measurements by name, and per layer where a measure has layers.

    `report["relative.kappa"].value`, `report.layers["relative.kappa"]["fc"].value`
    """

    CALLED: ClassVar = "the report"
    EXTENDED: ClassVar = True
    FORMAT: ClassVar = "spiritlevel-report-1"

    settings: dict[str, Any] = dataclasses.field(kw_only=True)
    cost: Cost = dataclasses.field(kw_only=True)
    measurements: Mapping[str, Measurement] = dataclasses.field(metadata={"key": "measures"})
    layers: Mapping[str, Mapping[str, Measurement]] = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        self.settings = dict(self.settings)  # of its own: commands add what they know

    def __getitem__(self, name: str) -> Measurement:
        try:
            return self.measurements[name]
        except KeyError:
            have = ", ".join(self.measurements)
            raise KeyError(f"This report has no {name!r}. It has: {have}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={number(m.value)}" for name, m in list(self.items())[:3])
        more = f", and {len(self) - 3} more" if len(self) > 3 else ""
        return visible(f"Report({values}{more}; {self.settings['num_samples']} samples)")

    def describe(self) -> list[Part]:
        """A row for each measure, and what was counted."""
        columns = [
            Column("measure"),
            Column("value", digits=VALUE),
            Column("± data", SAMPLING_ERROR, digits=ERROR),
            Column("", kind="mark"),
            Column("note", kind="note"),
        ]
        rows = [[name, m.with_errors, m.data_stderr, m.mark, m.text] for name, m in self.items()]
        count = int(self.settings["num_samples"])
        return [Table(columns, rows), Notes(self.cost.passes(count), count, self._remarks())]

    def _remarks(self) -> list[str]:
        """Where it was measured, and what was not."""
        lines = [
            f"{name.replace('_', ' ')}: {self.settings[name]}"
            for name in ("autocast", "measured_on")
            if name in self.settings
        ]
        if "frozen" in self.settings:
            lines.append(f"frozen, so not measured: {self.settings['frozen']}")
        return lines + _left_out(self.settings.get("left_out", {}))

    def check_parts(self) -> None:
        """Refuse settings that nothing can be calculated with."""
        read_settings(self.settings, "the report's settings")

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
    dear, budget = list[str](), ""
    for name, reason in reasons.items():
        if price := PRICE.search(reason):
            dear.append(f"{name} (about {price[1]})")
            budget = f"{price[3]} {price[2]}"
            continue
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
    if dear:
        lines.append(
            f"left out, since the budget is {budget}: {', '.join(dear)}; ask for them by name, or "
            "raise the budget"
        )
    return lines
