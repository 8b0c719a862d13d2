"""Populations of trained models: how they are declared, run, stored and judged."""

from .control import execute, find, resume, run, state
from .definition import Study
from .settings import RunSettings
from .store import Store

__all__ = ["RunSettings", "Store", "Study", "execute", "find", "resume", "run", "state"]
