"""What "trained" means for a claim: networks that have not learned decide nothing about minima."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..population.runs.outcomes import DIVERGED

Row = Mapping[str, Any]
WORDS = {
    "train_loss": "training loss",
    "running_loss": "running loss",
    "head_gradient": "gradient of the last layer",
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """What one number of a run must reach.

    `reached` are the levels of which one must have ended training.
    """

    column: str
    at_least: float | None = None
    at_most: float | None = None
    reached: tuple[str, ...] = ()
    name: str = ""  # of the number, in words; "" for a column that has its own

    def is_met(self, row: Row) -> bool:
        """Whether the run has the number and it is within the limit; nan is not."""
        value = row.get(self.column)
        if self.reached:
            return value in self.reached
        if value is None or math.isnan(value):
            return False
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def __str__(self) -> str:
        if self.reached:
            words = " or ".join(WORDS[each] for each in self.reached)
            return f"the {words} at which the study stops was reached"
        name = self.name or WORDS[self.column]
        if self.at_least is not None:
            return f"a {name} of at least {self.at_least:g}"
        return f"a {name} of at most {self.at_most:g}"


def everyone(row: Row) -> bool:
    """The condition that asks every network."""
    del row
    return True


@dataclasses.dataclass(frozen=True)
class NotAsked:
    """A claim that is not about trained networks, and why."""

    why: str

    def __str__(self) -> str:
        return f"not asked. {self.why}"


@dataclasses.dataclass(frozen=True)
class TrainedWhen:
    """When a network counts as trained, and how many such networks a claim needs.

    Args:
        limits: all of them must be met.
        why: where they come from, as a sentence.
        needed: trained networks, in each of the groups that the claim compares.
        by: the column that tells these groups apart; "" for one group.
        asked: which runs must meet the limits; the others count as they are.
        of: these runs in words, for "asked of ...".
        half_of: the column of settings; those of which fewer than half of the networks meet the
            limits are left out, since the rest of them is a selection.
        settings: how many settings must be left.
    """

    limits: tuple[Limit, ...]
    why: str
    needed: int = 3
    by: str = ""
    asked: Callable[[Row], bool] = everyone
    of: str = "every network"
    half_of: str = ""
    settings: int = 0

    def __str__(self) -> str:
        half = f", in settings of which half of the networks come to it ({self.half_of})"
        asked = f"asked of {self.of}{half if self.half_of else ''}"
        return f"{' and '.join(map(str, self.limits))}, {asked}. {self.why}"

    def split(self, rows: Sequence[Row]) -> Split:
        """The runs that the claim is judged by, and those that are left out."""
        met = [self._counts(row) for row in rows]
        if self.half_of:
            met = self._in_halves(rows, met)
        judged = [row for row, each in zip(rows, met, strict=True) if each]
        left_out = [row for row, each in zip(rows, met, strict=True) if not each]
        few = self.half_of and len({row[self.half_of] for row in judged}) < self.settings
        return Split(
            judged, left_out, self._groups(rows), self._groups(judged), self.needed, bool(few)
        )

    def _in_halves(self, rows: Sequence[Row], met: Sequence[bool]) -> list[bool]:
        """Without those whose setting has more networks that miss the limits than meet them."""
        shares: dict[Any, list[bool]] = {}
        for row, each in zip(rows, met, strict=True):
            shares.setdefault(row[self.half_of], []).append(each)
        kept = {setting for setting, own in shares.items() if 2 * sum(own) >= len(own)}
        return [each and row[self.half_of] in kept for row, each in zip(rows, met, strict=True)]

    def _counts(self, row: Row) -> bool:
        if row.get("outcome") == DIVERGED:
            return False
        return not self.asked(row) or all(limit.is_met(row) for limit in self.limits)

    def _groups(self, rows: Sequence[Row]) -> dict[str, int]:
        """How many of the runs that were asked are in each group."""
        sizes: dict[str, int] = {}
        for row in filter(self.asked, rows):
            group = f"{self.by} {row.get(self.by)}" if self.by else ""
            sizes[group] = sizes.get(group, 0) + 1
        return sizes


@dataclasses.dataclass(frozen=True)
class Split:
    """Runs that are judged and runs that are not; sizes are of the runs that were asked."""

    judged: Sequence[Row]
    left_out: Sequence[Row]
    asked: Mapping[str, int]  # by group
    trained: Mapping[str, int]
    needed: int
    few_settings: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether most of the networks that were asked are trained, and enough of each group."""
        most = 2 * sum(self.trained.values()) >= sum(self.asked.values())
        return most and not self.few_settings and not self.short

    @property
    def met(self) -> str:
        """How many networks met the criterion, of those that were asked, or of a group too few."""
        for group in filter(None, self.short):
            return f"{self.trained.get(group, 0)} of {self.asked[group]} networks ({group})"
        return f"{sum(self.trained.values())} of {sum(self.asked.values())} networks"

    @property
    def short(self) -> list[str]:
        """Groups with too few trained networks because others of them are not trained.

        Networks that were never made are another matter: what few can show, intervals say.
        """
        return [
            group
            for group, size in self.asked.items()
            if self.trained.get(group, 0) < min(self.needed, size)
        ]

    def __str__(self) -> str:
        """How many of each group are trained."""
        return ", ".join(
            f"{self.trained.get(group, 0)} of {size}{f' ({group})' if group else ''}"
            for group, size in self.asked.items()
        )
