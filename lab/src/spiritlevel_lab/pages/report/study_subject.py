"""What a study's runs are about: its model and data, where the runs have any use for them."""

from __future__ import annotations

import dataclasses

from ...population.registry import SECTIONS, registered_task
from ...population.settings.definition import Study, place
from .study_words import named

DEFAULTS = {field.name: field.default for field in dataclasses.fields(Study)}


def subject(study: Study) -> dict[str, str]:
    """Model and data by section; without those that no run looks at.

    >>> subject(Study("mine")), subject(Study("drawn", task="tasks_class_separation"))
    ({'model': 'mlp', 'data': 'digits'}, {})
    """
    tasks = {run.task.name if run.task else "" for run in study.runs()}
    used = {section for task in tasks for section in _used(study, task)}
    return {name: named(getattr(study, name)) for name in SECTIONS if name in used}


def _used(study: Study, task: str) -> tuple[str, ...]:
    """What runs with this task look at; "" is training and measuring, which need both."""
    if not task:
        return SECTIONS
    registered = registered_task(task)
    if registered is not None:
        return registered.uses
    # Somebody's own task, which may not be on this machine: what its study says itself.
    varied = {place(key)[0] for key in study.grid}
    varied |= {place(key)[0] for changes in study.variants.values() for key in changes}
    return tuple(n for n in SECTIONS if n in varied or getattr(study, n) != DEFAULTS[n])
