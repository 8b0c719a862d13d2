"""Sections that others add to the report of a study, in front of all that the page shows anyway.

    from spiritlevel.pages.study_sections import LeadingSections, register_study_sections

    @register_study_sections
    def about_my_study(study, rows):
        if study.name != "mine":
            return None
        return LeadingSections(title="my question", lead="The answer.", sections=[...])

A package whose module does this names it under the entry point `spiritlevel.studies`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .. import plugins
from ..content import Section
from ..study.settings.definition import Study


@dataclasses.dataclass(frozen=True)
class LeadingSections:
    """What comes first on the page of a study."""

    title: str  # of the page, after the name of the study
    lead: str  # the one sentence to take away
    sections: Sequence[Section]


Rows = Sequence[Mapping[str, Any]]  # one per run, as `Population.rows` has them
Builder = Callable[[Study, Rows], LeadingSections | None]
AnyBuilder = TypeVar("AnyBuilder", bound=Builder)
_builders: list[Builder] = []


def register_study_sections(builder: AnyBuilder) -> AnyBuilder:
    """Have the report of every study ask `builder`, which returns None for other studies."""
    if builder not in _builders:
        _builders.append(builder)
    return builder


def leading_sections(study: Study, rows: Rows) -> LeadingSections | None:
    """What was registered for this study; None if nothing was."""
    plugins.load("spiritlevel.studies")
    built = (builder(study, rows) for builder in _builders)
    return next((each for each in built if each is not None), None)
