"""What records tell of themselves, and what pages consist of: plain data.

It is shown as text and in notebooks (`notebooks`), in a terminal (`cli/tables`) and as HTML
(`pages/report`), with the same digits everywhere: those of `number`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .reading import UNSAVED

FORMAT = "spiritlevel-page-1"
ENOUGH = 4  # marks for a line through them
MINUS = "−"
VALUE, SHORT = 6, 4  # digits of a value, and of one among many: of layers, of networks
ERROR = 2


class Uncertain(float):
    """A value that knows its error, which says how many of its digits are shown."""

    error: float

    def __new__(cls, value: float, *errors: float | None) -> Uncertain:
        """`errors` are independent; those that are not known do not count."""
        found = super().__new__(cls, value)
        found.error = math.hypot(*(error or 0.0 for error in errors))
        return found


def number(value: float, digits: int | None = None) -> str:
    """With so many digits, else with four, or as they read best; no more than its error allows.

    Whole numbers have all of their digits.

    >>> number(0.123456), number(-1234567.0), number(12345.6), number(2.0), number(-0.00001)
    ('0.1235', '−1.235e6', '12345.6', '2', '−1e−5')
    >>> number(12345.6, 2), number(0.12345678, 6), number(math.inf), number(5120000)
    ('12000', '0.123457', '∞', '5,120,000')
    >>> number(Uncertain(2528.583, 152.3), 6), number(Uncertain(0.2345678, 0.03125), 6)
    ('2529', '0.235')
    """
    if isinstance(value, int):
        return (f"{value:,}" if abs(value) >= 10_000 else str(value)).replace("-", MINUS)
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "∞" if value > 0 else f"{MINUS}∞"
    size, error = abs(value), getattr(value, "error", 0.0)
    digits = digits or (VALUE if 1e4 <= size < 1e6 else SHORT)
    if size and 0 < error < math.inf:
        before = math.floor(math.log10(size)) + 1  # the point
        known = before - math.floor(math.log10(error)) - 1 + ERROR
        digits = min(digits, max(known, before if size < 1e6 else 1, 1))
    shown = f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero
    if "e" in shown:
        mantissa, exponent = shown.split("e")
        is_plain = 1 <= abs(float(shown)) < 1e6
        shown = f"{float(shown):.0f}" if is_plain else f"{mantissa}e{int(exponent)}"
    return shown.replace("-", MINUS)


@dataclasses.dataclass(frozen=True)
class IntervalEstimate:
    """A value, the ends of its 95 % interval (nan where n is too small for one), and n."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{plain(self.value)} (n = {self.n}, no interval)"
        value, low, high = (plain(each, 3) for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


@dataclasses.dataclass(frozen=True)
class CorrelationCell:
    """A correlation with the ends of its interval (nan where there is none), in one cell.

    >>> print(CorrelationCell(-0.5, -0.75, 0.25))
    −0.50 [−0.75, +0.25]
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.shown} {self.interval}".rstrip()

    @property
    def shown(self) -> str:
        """The value without its interval."""
        return f"{self.value:+.2f}".replace("-", MINUS)

    @property
    def interval(self) -> str:
        """Both ends; "" where there is no interval."""
        if math.isnan(self.low) or math.isnan(self.high):
            return ""
        return f"[{self.low:+.2f}, {self.high:+.2f}]".replace("-", MINUS)


# None is shown as a dash and sorted last.
Cell = str | float | int | bool | IntervalEstimate | CorrelationCell | None


# "mark" says how far the number before it can be trusted, and "name" comes from outside, so that it
# may have to be broken; a long "note" stands below the table.
Kind = Literal["number", "word", "mark", "note", "name"]


@dataclasses.dataclass(frozen=True)
class Column:
    """What a column of a table says, and how its cells are shown."""

    title: str
    help: str = ""  # on a page: shown when the title is pointed at or focused
    # How it is shown, which is not written with a page.
    digits: int | None = dataclasses.field(default=None, metadata=UNSAVED)  # of its floats
    kind: Kind = dataclasses.field(default="number", metadata=UNSAVED)
    # Where there is little room, columns of one group are shown without those of others, and wide
    # columns are left out.
    group: str = dataclasses.field(default="", metadata=UNSAVED)
    wide: bool = dataclasses.field(default=False, metadata=UNSAVED)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under headings; a cell that has an interval shows it as well.

    On an HTML page its `id` is the anchor that leads to it.
    """

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Cell]]
    id: str = ""
    title: str = ""
    caption: str = ""  # says what is in it

    @property
    def headings(self) -> list[Column]:
        """The columns, each with its help text."""
        return [Column(each) if isinstance(each, str) else each for each in self.columns]

    def filled(self) -> Table:
        """The same without the columns that hold nothing, unless there are no rows."""
        columns = range(len(self.columns))
        kept = [i for i in columns if not self.rows or any(row[i] is not None for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return dataclasses.replace(self, columns=[self.columns[i] for i in kept], rows=rows)

    @property
    def names_rows(self) -> bool:
        """Whether the first column says what a row is about, and is no number itself."""
        return not all(isinstance(row[0], float) for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Notes:
    """What belongs to the part above: what was counted, and lines on how it came about."""

    passes: str  # over the data
    samples: int
    lines: Sequence[str] = ()

    @property
    def sentences(self) -> list[str]:
        """What was counted, then the lines."""
        return [f"{self.samples} samples, {self.passes} over the data", *self.lines]


@dataclasses.dataclass(frozen=True)
class Series:
    """One line of a figure; `low` and `high` are the ends of the intervals, where there are any."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    ring: bool = False  # a mark that shows what lies on it


@dataclasses.dataclass(frozen=True)
class Figure:
    """Lines with error bars in one pair of axes; with `points`, marks that are not joined.

    It can be drawn into a file and in a browser. A figure on an HTML page needs an `id`.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    points: bool = False
    fitted: bool = False  # with `points`: a line through the marks of each series that has enough
    density: bool = False  # with `points`: in a file, contours of how dense the marks lie
    id: str = ""
    title: str = ""
    caption: str = ""
    names: str = ""  # what the names of the series say, as a heading of the legend


@dataclasses.dataclass(frozen=True)
class Panels:
    """Figures beside each other, row by row, that are drawn into one file."""

    figures: Sequence[Figure]
    columns: int
    id: str = ""
    title: str = ""


@dataclasses.dataclass(frozen=True)
class Chart:
    """An interactive picture, drawn in the browser from `data` by the script for its `kind`.

    `report/assets/kinds/KIND.js` registers `spiritlevel.kinds[KIND] = (element, data, theme) => …`.
    Data is JSON; a number that is not finite is null there. `table` holds the same numbers to read.
    """

    id: str
    title: str
    kind: str
    data: Mapping[str, Any]
    table: Table
    caption: str = ""  # what is seen, n, and how far it carries


@dataclasses.dataclass(frozen=True)
class Text:
    """Paragraphs; a list where `bullets`."""

    paragraphs: Sequence[str]
    bullets: bool = False


@dataclasses.dataclass(frozen=True)
class Cards:
    """The cards of measures, each folded up until it is asked for."""

    names: Sequence[str]


Part = Table | Notes | Figure | Chart | Text | Cards


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    id: str
    title: str
    parts: Sequence[Part]
    # On a page: shown when its heading is opened, which is not written with a page.
    folded: bool = dataclasses.field(default=False, metadata=UNSAVED)


@dataclasses.dataclass(frozen=True)
class Page:
    """A whole report: `facts` (what was measured, n) stand in a box at the top."""

    title: str
    lead: str  # the one sentence to take away
    facts: Mapping[str, str]
    sections: Sequence[Section]
    highlights: Sequence[str] = ()  # what to know beside the lead
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # folded up below

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types, ready for JSON."""
        fields: dict[str, Any] = finite(self)
        return {"format": FORMAT} | fields


def fitted_line(
    x: Sequence[float], y: Sequence[float], *, log_x: bool = False
) -> tuple[list[float], list[float]] | None:
    """The ends of the line of least squares, as x and y; None for too few marks to see a trend.

    On a logarithmic axis it is a line through the logarithms, which is drawn straight there.

    >>> fitted_line([1, 2, 3, 4], [2, 4, 6, 8])
    ([1, 4], [2.0, 8.0])
    """
    if len(x) < ENOUGH or min(x) == max(x):
        return None
    across = [math.log(value) for value in x] if log_x else list(x)
    slope, intercept = statistics.linear_regression(across, y)
    ends = min(x), max(x)
    return list(ends), [intercept + slope * (math.log(e) if log_x else e) for e in ends]


def finite(value: Any) -> Any:
    """The same in JSON's types: it has no nan or inf, which become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value):
        shown = (field for field in dataclasses.fields(value) if field.metadata != UNSAVED)
        return {field.name: finite(getattr(value, field.name)) for field in shown}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def plain(value: float, digits: int = 4) -> str:
    """A few digits, as short as they come; powers of ten below 0.0001 and from a million on.

    >>> plain(0.123456), plain(5.11e8), plain(2282.1, 3), plain(float("nan"))
    ('0.1235', '5.11e+08', '2280', '–')
    """
    if math.isnan(value):
        return "–"
    short = f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero
    return f"{float(short):.0f}" if "e" in short and 1 <= abs(value) < 999_500 else short
