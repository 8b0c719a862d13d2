"""Exit codes, and how a command is stopped: by Ctrl-C from its first moment on, and by SIGTERM.

Schedulers and containers send SIGTERM before they kill.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType

REFUSED = 1  # the request could not be met
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
TERMINATED = 143  # 128 + SIGTERM
INTERRUPTION = "interrupted. No partial files were written."


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C while a command's packages are imported, which takes seconds, ends it in one line.

    Another program that imports this package sees KeyboardInterrupt as ever.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not _is_command():
            raise
        sys.stderr.write(f"error: {INTERRUPTION}\n")
        raise SystemExit(INTERRUPTED) from None


def _is_command() -> bool:
    """Whether this process is `spiritlevel`, `python -m spiritlevel` or its part `.cli`."""
    module = next((name for flag, name in pairwise(sys.orig_argv) if flag == "-m"), "")
    name = pathlib.Path((sys.argv or [""])[0]).stem  # of a script; "-m" is no name yet
    return name == "spiritlevel" or module in ("spiritlevel", "spiritlevel.cli")


class Termination:
    """While it is entered, SIGTERM raises KeyboardInterrupt; `came` says that it did."""

    def __init__(self) -> None:
        self.came = False
        self._process = os.getpid()
        # a thread that is not the main one may neither receive signals nor say what they do
        self._is_heard = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Termination:
        if self._is_heard:
            self._before = signal.signal(signal.SIGTERM, self._interrupt)
        return self

    def __exit__(self, *raised: object) -> None:
        if self._is_heard:
            signal.signal(signal.SIGTERM, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child by fork, which has nothing to return
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self.came = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would disturb the end
        raise KeyboardInterrupt
