"""The section `networks` of a study: networks that exist already, in place of a grid."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...errors import SpiritlevelError
from ...need import is_number
from .keys import ValueCheck, as_mapping, check_keys, is_scalar, must_be

SEED = ValueCheck(int, "a whole number of at least 0", lambda v: v >= 0)


@dataclasses.dataclass(frozen=True)
class ExistingNetwork:
    """A network that is measured as it is.

    Args:
        name: what it is called in reports.
        settings: what it was trained with, as far as it is compared by that.
        outcomes: what is known of it, such as its test accuracy. No part of a run's id: a number
            that is corrected or added later does not make it another network.
        seed: of its training, where that is known; also of the probes.
        model: entries of the study's model that are its own.
        task: entries of the study's task that are its own, such as its checkpoint.
    """

    name: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outcomes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seed: int = 0
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, given: object, where: str) -> ExistingNetwork:
        """From a mapping; every entry checked."""
        section = as_mapping(where, given)
        check_keys(where, section, [field.name for field in dataclasses.fields(cls)])
        name = section.get("name")
        must_be(isinstance(name, str) and bool(name), f"{where}.name", name, "a text")
        settings = as_mapping(f"{where}.settings", section.get("settings"))
        for key, value in settings.items():
            must_be(is_scalar(value), f"{where}.settings.{key}", value, "a number or a name")
        outcomes = as_mapping(f"{where}.outcomes", section.get("outcomes"))
        for key, value in outcomes.items():
            is_outcome = is_number(value) and math.isfinite(value)
            must_be(is_outcome, f"{where}.outcomes.{key}", value, "a finite number")
        return cls(
            name=str(name),
            settings=settings,
            outcomes={key: float(value) for key, value in outcomes.items()},
            seed=SEED.read(f"{where}.seed", section.get("seed", 0)),
            model=as_mapping(f"{where}.model", section.get("model")),
            task=as_mapping(f"{where}.task", section.get("task")),
        )


def read_networks(given: object) -> list[ExistingNetwork]:
    """All of them; the names differ, and settings and outcomes have the same keys."""
    must_be(isinstance(given, list | tuple), "networks", given, "a list of mappings")
    listed = enumerate(cast("Sequence[object]", given))
    networks = [ExistingNetwork.read(each, f"networks[{i}]") for i, each in listed]
    [(name, times)] = collections.Counter(n.name for n in networks).most_common(1) or [("", 0)]
    if times > 1:
        raise SpiritlevelError(
            f"The study's networks must have different names. {name!r} is there {times} times. "
            "Rename them, or leave the second out."
        )
    for field in ("settings", "outcomes"):
        first = set(getattr(networks[0], field)) if networks else set()
        for network in networks:
            if odd := first ^ set(getattr(network, field)):
                raise SpiritlevelError(
                    f"The study's networks must all have the same {field}. {network.name!r} and "
                    f"{networks[0].name!r} differ in {', '.join(sorted(odd))}."
                )
    return networks


def axes_of(networks: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings by which the networks are told apart, with their values, from plain mappings."""
    axes: dict[str, dict[str, Any]] = {}
    for network in networks:
        for key, value in (network.get("settings") or {}).items():
            axes.setdefault(key, {})[json.dumps(value)] = value
    return {key: list(values.values()) for key, values in axes.items()}
