"""The epochs of a run in little memory: a study of 10,000 runs has a million of them."""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

Row = dict[str, Any]


class EpochRows(Sequence[Row]):
    """A run's epochs, in order. Each is a mapping, made when it is asked for.

    >>> rows = EpochRows("a", [{"run": "a", "epoch": 1, "train_loss": 0.5}])
    >>> rows[-1]
    {'run': 'a', 'epoch': 1, 'train_loss': 0.5}
    """

    def __init__(self, run: str, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.run = run
        self._numbers: dict[str, array.array[float]] = {}
        self._missing: tuple[str, ...] = ()  # columns without numbers: the study has no such data
        self._length = 0
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the next epoch. All epochs of a run have the same columns."""
        if not self._length:
            self._numbers = {
                name: array.array("q" if name == "epoch" else "d")
                for name, value in row.items()
                if name != "run" and value is not None
            }
            self._missing = tuple(name for name, value in row.items() if value is None)
        for name, numbers in self._numbers.items():
            numbers.append(row[name])
        self._length += 1

    def column(self, name: str) -> Sequence[float]:
        """One number per epoch; empty if the run has none under this name."""
        return self._numbers.get(name, ())

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        numbers = {name: column[index] for name, column in self._numbers.items()}
        return {"run": self.run} | numbers | dict.fromkeys(self._missing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def numbers_of(rows: Sequence[Mapping[str, Any]], name: str) -> Sequence[float]:
    """A column of a run's epochs, whose rows may be plain mappings; empty if it has no numbers."""
    if isinstance(rows, EpochRows):
        return rows.column(name)
    return [row[name] for row in rows if row.get(name) is not None]
