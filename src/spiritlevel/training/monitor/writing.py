"""Writing a monitor's rows where writing may fail: training is worth more than a row.

A sink that fails (a full disk, a server that is away, an error of the user's function) is warned
about, and nothing is raised.
"""

from __future__ import annotations

import collections
import warnings

from .rows import Row, Sink


class Writer:
    """Hands rows to one sink, now or later."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._started = False  # whether the sink knows where to begin
        self._after: int | None = None  # the step to continue from
        self._waiting: collections.deque[Row] = collections.deque()
        self._failing = False

    def resume(self, after: int) -> None:
        """Continue from that step: what waits is of a later one, and will be measured again."""
        self._after, self._started = after, False
        self._waiting = collections.deque(row for row in self._waiting if row["step"] <= after)

    def write(self, row: Row) -> None:
        """Write the rows that wait and this one. Where that fails, warn and go on.

        Rows wait for a disk or a server. One that the sink itself cannot take is left out.
        """
        self._waiting.append(row)
        try:
            if not self._started:
                self._sink.start(self._after)
                self._started = True
            while self._waiting:
                self._sink.write(self._waiting[0])
                self._waiting.popleft()
        except OSError as error:
            self._warn(f"{error}. The rows are written as soon as that works again")
        except Exception as error:  # whatever it is, training must go on
            self._waiting.popleft()
            self._warn(f"{type(error).__name__}: {error}")
        else:
            self._failing = False

    def _warn(self, cause: str) -> None:
        """Once, until writing works again."""
        if not self._failing:
            target = getattr(self._sink, "path", None) or type(self._sink).__name__
            warnings.warn(
                f"The monitor cannot write its rows to {str(target)!r}: {cause}. Training goes on, "
                "and `monitor.rows` has them all.",
                RuntimeWarning,
                stacklevel=5,
            )
        self._failing = True
