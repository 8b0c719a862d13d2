"""Workers are started and stopped the same way on every system."""

import os
import signal

import pytest

from spiritlevel_lab.population.executors import processes


def stopped_twice(ended):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        ended.append(True)


def test_a_second_sigterm_does_not_disturb_the_end_of_a_worker():
    ended = []
    before = signal.signal(signal.SIGTERM, processes._interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            stopped_twice(ended)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [True]


def test_workers_are_started_as_windows_starts_them():
    """A fork would hide what a fresh process lacks; so every test with workers tries this."""
    assert processes.START == "spawn"
