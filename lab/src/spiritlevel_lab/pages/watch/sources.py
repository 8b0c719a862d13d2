"""What is at the path that is watched: a study, files of monitors, or nothing yet."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
from typing import Any

from ...population.storage.copies import Stamp, files_of, stamp
from ...population.storage.database import DATABASE
from .monitors import SUFFIXES, monitor_state
from .reading import Unreadable, is_settled
from .studies import study_state

MOST_MONITORS = 12  # the newest files of a folder
MOST_KEPT = 50  # answers, one a measure
BOTH = f"a study ({DATABASE}) or rows of a monitor ({' or '.join(SUFFIXES)})"


class Watched:
    """A path, read again only after something there has changed.

    Nothing there is ever written, and whatever is missing or damaged is a text, not a failure: it
    may be there or whole at the next look.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(os.path.abspath(path))
        self._lock = threading.Lock()  # however many pages are open, one of them reads
        self._stamp: Stamp | None = None
        self._kept: dict[str, bytes] = {}

    def answer(self, measure: str = "") -> bytes:
        """The state as JSON; the study's picture is of `measure`."""
        with self._lock:
            now = self._stamp_now()
            if now != self._stamp or len(self._kept) > MOST_KEPT:
                self._stamp, self._kept = now, {}
            if measure not in self._kept:
                text = json.dumps(self.state(measure), allow_nan=False)
                self._kept[measure] = text.encode()
            body = self._kept[measure]
            if not is_settled(now):
                self._stamp = None
            return body

    def _stamp_now(self) -> Stamp:
        inside = sorted(self._rows_files()) if self.path.is_dir() else []
        return stamp([self.path, *files_of(self._folder()), *inside])

    def state(self, measure: str = "") -> dict[str, Any]:
        """Everything the page shows, in plain types."""
        state: dict[str, Any] = {
            "path": str(self.path),
            "title": self.path.name or str(self.path),
            "waiting": "",
            "study": None,
            "monitors": [],
        }
        try:
            state["monitors"] = self._monitors()
            if (self._folder() / DATABASE).exists():
                state["study"] = study_state(self._folder(), measure)
                state["title"] = state["study"]["name"]
            elif not state["monitors"]:
                state["waiting"] = self._nothing()
        except Unreadable as error:
            state["waiting"] = str(error)
        return state

    def _folder(self) -> pathlib.Path:
        """The study's folder, also where the path is its database file."""
        return self.path.parent if self.path.name == DATABASE else self.path

    def _rows_files(self) -> list[pathlib.Path]:
        try:
            return [path for path in self.path.iterdir() if path.suffix.lower() in SUFFIXES]
        except OSError:  # gone since it was looked at
            return []

    def _monitors(self) -> list[dict[str, Any]]:
        if self.path.suffix.lower() in SUFFIXES and self.path.is_file():
            return [monitor_state(self.path)]
        if not self.path.is_dir():
            return []
        dated = [(each[2], path) for path in self._rows_files() for each in stamp([path]) if each]
        states: list[dict[str, Any]] = []
        for _, path in sorted(dated, reverse=True):
            with contextlib.suppress(Unreadable):  # another program's file
                states.append(monitor_state(path))
            if len(states) == MOST_MONITORS:
                break
        return sorted(states, key=lambda monitor: str(monitor["name"]))

    def _nothing(self) -> str:
        if not self.path.exists():
            return (
                f"There is nothing at {str(self.path)!r} (yet). The page goes on as soon as {BOTH} "
                "is there."
            )
        if self.path.is_dir():
            return f"The folder {str(self.path)!r} holds neither yet: {BOTH}."
        return (
            f"{str(self.path)!r} is neither: {BOTH}. Start `spiritlevel watch` again with the path "
            "of one, or of the folder that holds it."
        )
