"""What is left of a trend over runs once another number, that moved too, is held fixed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ...study.statistics import Correlation, partial_correlation, spearman
from ..experiment import Cell, Row, Table, titled
from ..judging.findings import estimate
from ..judging.rows import column


@dataclasses.dataclass(frozen=True)
class Confounder:
    """A number that moved along with what was varied: columns, and what sentences call them."""

    varied: str
    varied_words: str
    fixed: str
    fixed_words: str

    def section(self, rows: Sequence[Row], names: Sequence[str], text: str = "") -> Table:
        """For each of these numbers its trend, before and after. Shown, and not judged."""
        cells: list[list[Cell]] = []
        for name in names:
            before = (self._with_varied(rows, name), self._with_fixed(rows, name))
            left = self.left(rows, name)
            cells.append([name, left.n, *map(estimate, (*before, left))])
        itself = self._with_varied(rows, self.fixed)
        shown = (
            f"Rank correlations over runs, not judged, and looked at after the runs were made. "
            f"That of {self.varied_words} with {self.fixed_words} itself is {itself}. The last "
            f"column takes out of both ranks what follows those of {self.fixed_words} linearly."
        )
        return titled(
            f"With {self.fixed_words} held fixed",
            f"{text} {shown}".strip(),
            Table(
                (
                    "number",
                    "n",
                    f"with {self.varied_words}",
                    f"with {self.fixed_words}",
                    f"with {self.varied_words}, {self.fixed_words} held fixed",
                ),
                cells,
            ),
        )

    def why(self, rows: Sequence[Row], name: str, name_words: str) -> str:
        """The same of one number, in sentences."""
        before, left = self._with_varied(rows, name), self.left(rows, name)
        return (
            f"It may be {self.fixed_words} that {name_words} follows: {self.fixed_words} has a "
            f"rank correlation of {self._with_varied(rows, self.fixed)} with {self.varied_words} "
            f"and of {self._with_fixed(rows, name)} with {name_words}. With {self.fixed_words} "
            f"held fixed, that of {self.varied_words} and {name_words} is {left} instead of "
            f"{before}: {what_is_left(before, left)}."
        )

    def left(self, rows: Sequence[Row], name: str) -> Correlation:
        """Of the trend of one number."""
        fixed = {self.fixed: column(rows, self.fixed)}
        return partial_correlation(
            column(rows, self.varied), column(rows, name), fixed, kind="spearman"
        )

    def _with_varied(self, rows: Sequence[Row], name: str) -> Correlation:
        return spearman(column(rows, self.varied), column(rows, name))

    def _with_fixed(self, rows: Sequence[Row], name: str) -> Correlation:
        return spearman(column(rows, self.fixed), column(rows, name))


def what_is_left(before: Correlation, after: Correlation) -> str:
    """In words; an interval around 0 is no clear trend."""
    if math.isnan(after.low):
        return "these runs cannot tell what is left"
    if after.low <= 0 <= after.high:
        return "no clear trend is left" if _clear(before) else "no clear trend, as before"
    if not _clear(before):
        return "a trend that was not clear before"
    same = (before.value > 0) == (after.value > 0)
    return "a trend in the same direction is left" if same else "the trend turns round"


def _clear(trend: Correlation) -> bool:
    return trend.low > 0 or trend.high < 0
