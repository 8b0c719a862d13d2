"""The sections `model`, `data` and `task` of a study."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .keys import (
    SettingsSection,
    as_named,
    check_keys,
    count,
    flag,
    number,
    one_of,
    path,
    read_values,
    readers_of,
    text,
)


@dataclasses.dataclass(frozen=True)
class ModelSettings(SettingsSection):
    """Which network is trained, and from which weights it starts."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of its factory
    init: str | None = one_of(
        *("xavier_normal", "kaiming_uniform", "uniform", "normal", "narrow_normal"), default=None
    )
    init_bias: str = one_of("keep", "zero", default="keep")
    init_from: str | None = path("the path of a checkpoint, or the folder of a study")
    init_head: str = one_of("keep", "fresh", default="keep")

    @classmethod
    def read(cls, given: object) -> ModelSettings:
        """From a name, or a mapping; the keys that are not ours are the factory's arguments."""
        section = as_named("model", given)
        values = read_values("model", section, cls)
        if "init_from" not in values:
            values.pop("init_head", None)
        ours = ("name", *readers_of(cls))
        arguments = {key: value for key, value in section.items() if key not in ours}
        return cls(section["name"], arguments, **values)


@dataclasses.dataclass(frozen=True)
class DataSettings(SettingsSection):
    """What is trained and tested on."""

    name: str
    samples: int | None = count()  # None: all
    test_samples: int | None = count()  # None: all
    test: str | None = text("the name or path of the test data")  # None: the data's test part
    validation: float | int | None = number(
        float,
        None,
        "a share of the training data below 1, or a whole number of samples",
        lambda v: 0 < v < 1 or (v >= 1 and v == int(v)),
    )
    normalize: bool = flag()  # to mean 0 and deviation 1 of each channel of the training data
    nulls: tuple[str, ...] = ()  # keys written as null, which the ids of older runs hold

    @classmethod
    def read(cls, given: object) -> DataSettings:
        """From a name, or a mapping."""
        section = as_named("data", given)
        check_keys("data", section, ("name", *readers_of(cls)))
        values = read_values("data", section, cls)
        if values.get("validation", 0) >= 1:
            values["validation"] = int(values["validation"])
        nulls = ("samples",) if section.get("samples", 1) is None else ()
        return cls(section["name"], **values, nulls=nulls)


@dataclasses.dataclass(frozen=True)
class TaskSettings(SettingsSection):
    """What a run does in place of training and measuring."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, given: object) -> TaskSettings:
        """From a name, or a mapping; the keys but the name are the task's arguments."""
        section = as_named("task", given)
        return cls(section.pop("name"), section)
