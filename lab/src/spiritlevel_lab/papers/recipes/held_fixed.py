"""What is left of a trend over runs when another number that also changed is held fixed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.records.content import Cell, Table

from ...claims.experiment import Row, titled
from ...claims.findings import estimate
from ...claims.rows import column
from ...statistics import Correlation, partial_correlation, spearman
from .runs import Spec, among
from .sentences import filled


@dataclasses.dataclass(frozen=True)
class ConfoundedTrend:
    """A number that changed along with what was varied: columns, and their names in sentences.

    Args:
        shown: numbers whose trend the table has.
        text: what the table's caption begins with, with numbers as fields.
        explained: a number whose trend is looked at in a sentence, and its name; or none.
        among: which runs, by their values.
    """

    varied: str
    varied_title: str
    fixed: str
    fixed_title: str
    shown: Sequence[str]
    text: str = ""
    explained: tuple[str, str] | None = None
    among: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, spec: Spec) -> ConfoundedTrend:
        """The trend that the section `held_fixed` of a recipe names, and what is shown of it."""
        [(varied, varied_title)], [(fixed, fixed_title)] = (
            spec[key].items() for key in ("varied", "fixed")
        )
        [explained] = spec["why"].items() if "why" in spec else [None]
        return cls(
            *(varied, varied_title, fixed, fixed_title, spec["shown"]),
            text=spec.get("text", ""),
            explained=explained,
            among=spec.get("among", {}),
        )

    def section(self, rows: Sequence[Row], fields: Mapping[str, Any]) -> Table:
        """A table with the trend of each number, before and after. It is not judged."""
        rows = among(rows, self.among)
        cells: list[list[Cell]] = []
        for name in self.shown:
            before = (self._with_varied(rows, name), self._with_fixed(rows, name))
            left = self.left(rows, name)
            cells.append([name, left.n, *map(estimate, (*before, left))])
        itself = self._with_varied(rows, self.fixed)
        shown = (
            f"Rank correlations over runs; they are not judged, and were looked at after the runs. "
            f"That of {self.varied_title} with {self.fixed_title} itself is {itself}. The last "
            f"column removes from both ranks what depends linearly on those of {self.fixed_title}."
        )
        return titled(
            f"With {self.fixed_title} held fixed",
            f"{filled(self.text, fields)} {shown}".strip(),
            Table(
                (
                    "number",
                    "n",
                    f"with {self.varied_title}",
                    f"with {self.fixed_title}",
                    f"with {self.varied_title}, {self.fixed_title} held fixed",
                ),
                cells,
            ),
        )

    def why(self, rows: Sequence[Row]) -> list[str]:
        """What becomes of the explained number's trend, as sentences; none if there is none."""
        if self.explained is None:
            return []
        name, title = self.explained
        before, left = self._with_varied(rows, name), self.left(rows, name)
        return [
            f"{title[:1].upper()}{title[1:]} may follow {self.fixed_title}: {self.fixed_title} has "
            f"a rank correlation of {self._with_varied(rows, self.fixed)} with {self.varied_title} "
            f"and of {self._with_fixed(rows, name)} with {title}. With {self.fixed_title} held "
            f"fixed, that of {self.varied_title} and {title} is {left} instead of {before}: "
            f"{what_is_left(before, left)}."
        ]

    def left(self, rows: Sequence[Row], name: str) -> Correlation:
        """The correlation of one number with what was varied, the confounder held fixed."""
        fixed = {self.fixed: column(rows, self.fixed)}
        return partial_correlation(
            column(rows, self.varied), column(rows, name), fixed, kind="spearman"
        )

    def _with_varied(self, rows: Sequence[Row], name: str) -> Correlation:
        return spearman(column(rows, self.varied), column(rows, name))

    def _with_fixed(self, rows: Sequence[Row], name: str) -> Correlation:
        return spearman(column(rows, self.fixed), column(rows, name))


def what_is_left(before: Correlation, after: Correlation) -> str:
    """What became of a trend, in words; an interval around 0 is no clear trend."""
    if math.isnan(after.low):
        return "these runs cannot tell what is left"
    if after.low <= 0 <= after.high:
        return "no clear trend is left" if before.is_clear else "no clear trend, as before"
    if not before.is_clear:
        return "a trend that was not clear before"
    same = (before.value > 0) == (after.value > 0)
    return "a trend in the same direction is left" if same else "the trend is reversed"
