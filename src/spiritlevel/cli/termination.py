"""SIGTERM stops a command as Ctrl-C does: schedulers and containers send it before they kill."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


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
