"""A study: a model, data, a grid of settings, seeds, and what is measured at the end."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, brief, suggestion
from spiritlevel.ground.files import check_name
from spiritlevel.records.reading import UNSAVED

from .keys import as_mapping, check_keys, is_scalar, must_be, readers_of
from .measuring import check_measures
from .networks import axes_of, read_networks
from .plain_values import check_plain, read_yaml
from .run import READ, RunSettings
from .training import TrainingSettings

SECTIONS = (
    *("model", "data", "training", "interventions", "stop", "measures", "measure_options"),
    *("measure_every", "epoch_measures", "task"),
)
# In these a preset changes single keys; the others it replaces.
MERGED = ("model", "data", "training", "measure_options", "task")
MAX_RUNS = 1_000_000
VARIANT = "variant"  # the axis that the variants are on
TRAINING = tuple(readers_of(TrainingSettings))
# The keys of each section; None where a user's own function knows them.
KEYS: dict[str, Sequence[str] | None] = {name: tuple(readers_of(READ[name])) for name in READ}
KEYS |= {"data": ("name", *readers_of(READ["data"])), "model": None, "task": None}
KeyPlace = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Study:
    """A population of runs: every combination of the grid, with every seed.

    Args:
        name: the name of the study and of its folder.
        description: what it is for, in a sentence.
        model: a name or {"name": "mlp", "hidden": 64}, as
            `spiritlevel.inputs.models.build` takes them; `init` (xavier_normal, ...) and
            `init_from` (trained weights) say how it starts.
        data: a name or {"name": "digits", "samples": 400, "test": name of the test data,
            "test_samples": 100, "validation": share or number of training samples held back}.
        training: optimizer, lr, batch_size, epochs, weight_decay, momentum, dtype, threads; a
            schedule (constant, cosine, step) with warmup; a method (plain, sam, asam, noise_sam)
            with rho; penalty, norm_control, freeze, lr_backbone.
        grid: lists of values by key: of `training` by its plain name ("lr"), of the others with
            their section ("model.hidden", "data.samples", "interventions.label_noise").
        variants: named sets of keys, written as in the grid, that change together; they make one
            more axis.
        seeds: how many (from 0), or a list of them.
        interventions: such as {"label_noise": 0.2}; also leakage, mask, bias_shift, batch_cycles,
            and input_noise, crop_flip, crop, mixup and auto_augment, which change every batch anew.
        stop: train_loss or train_accuracy that ends training early, or a rule (loss, flatness,
            both, trend) with patience and tolerance; `epochs` ends it in any case.
        measures: names or patterns; None takes those that suit the network.
        measure_options: samples (of the training data), and arguments of `spiritlevel.measure`.
        measure_every: also measure after every so many epochs; None: only at the end.
        epoch_measures: the measures taken then; None: the same as at the end.
        task: "module:function" or {"name": ..., "key": value}, done instead of training and
            measuring.
        presets: named sets of fields that replace the ones above.
        networks: in place of grid, variants and seeds, networks that exist already: a mapping each
            with a name, and settings, outcomes, seed, and its own entries of model and task.
        file: where the definition was read; code that may have come with it needs permission.

    >>> study = Study("small", grid={"lr": [0.1, 0.01]}, seeds=3)
    >>> len(study.runs())
    6
    """

    name: str
    description: str = ""
    model: str | Mapping[str, Any] = "mlp"
    data: str | Mapping[str, Any] = "digits"
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    seeds: int | Sequence[int] = 1
    interventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stop: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    measures: str | Sequence[str] | None = None
    measure_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measure_every: int | None = None
    epoch_measures: str | Sequence[str] | None = None
    task: str | Mapping[str, Any] | None = None
    networks: Sequence[Mapping[str, Any]] = ()
    file: pathlib.Path | None = dataclasses.field(
        default=None, kw_only=True, compare=False, repr=False, metadata=UNSAVED
    )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SpiritlevelError(f"The study's name must be a text. Got {brief(self.name)}.")
        check_name(self.name, what="study's name", advice="Choose a name such as digits-lr.")
        for name in _field_names():
            check_plain(name, getattr(self, name), finite=False)
        for field in ("measures", "epoch_measures"):
            if isinstance(getattr(self, field), str):
                object.__setattr__(self, field, [getattr(self, field)])
            check_measures(field, getattr(self, field))
        object.__setattr__(self, "seeds", _seeds(self.seeds))
        object.__setattr__(self, "grid", _grid(self.grid))
        object.__setattr__(self, "variants", _variants(self.variants, self.grid))
        object.__setattr__(self, "networks", _networks(self))
        for name, changes in as_mapping("presets", self.presets).items():
            allowed = [n for n in _field_names() if n not in ("name", "presets")]
            check_keys(f"preset {name!r}", as_mapping(f"preset {name!r}", changes), allowed)
        # Without the grid, so that a value that the grid replaces is checked too.
        RunSettings.from_sections({name: getattr(self, name) for name in SECTIONS}, seed=0, axes={})
        for name in _field_names():
            check_plain(name, getattr(self, name))
        _ = self._runs  # every combination is read now, so that a wrong one is refused now

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Study:
        """The study that a mapping describes, with keys as in a YAML file."""
        fields = as_mapping("file", fields)
        check_keys("definition", fields, _field_names())
        if fields.get("name") is None:
            raise SpiritlevelError("The study must have a name. Add a line such as `name: mine`.")
        return cls(**{key: value for key, value in fields.items() if value is not None})

    @classmethod
    def from_yaml(cls, text: str, *, source: str = "the text") -> Study:
        """The study that a YAML text describes."""
        return cls.from_dict(read_yaml(text, source=source))

    def to_dict(self) -> dict[str, Any]:
        """Plain types; `from_dict` reads it back."""
        fields = {name: getattr(self, name) for name in _field_names()}
        if not self.networks:  # as studies without them were always written
            del fields["networks"]
        return json.loads(json.dumps(fields))

    @property
    def axes(self) -> list[str]:
        """What differs between runs, apart from the seed."""
        return [*([VARIANT] if self.variants else []), *self.grid, *axes_of(self.networks)]

    def with_preset(self, name: str) -> Study:
        """The study with the fields of one of its presets."""
        if not isinstance(name, str) or name not in self.presets:
            have = ", ".join(self.presets) or "none"
            raise SpiritlevelError(
                f"The study {self.name!r} has no preset {brief(name)}."
                f"{suggestion(name, self.presets)} It has: {have}."
            )
        changes = dict(self.presets[name] or {})
        for section in MERGED:
            if section in changes:
                changes[section] = _changed(getattr(self, section), changes[section])
        return dataclasses.replace(self, presets={}, **changes)

    def with_values(self, values: Mapping[str, Any]) -> Study:
        """The study with single values changed, by keys as in the grid, or "seeds".

        >>> Study("small", seeds=3).with_values({"model.hidden": 8, "epochs": 2}).model
        {'name': 'mlp', 'hidden': 8}
        """
        changes: dict[str, Any] = {}
        for key, value in values.items():
            if key == "seeds":
                changes[key] = value
                continue
            section, entry = place(key)
            varied = {place(axis): axis for axis in self.grid}
            varied |= {place(k): f"variants.{v}" for v, keys in self.variants.items() for k in keys}
            if (section, entry) in varied:
                raise SpiritlevelError(
                    f"The study {self.name!r} varies {key!r} itself ({varied[section, entry]}), so "
                    "one value cannot be set for it. Copy the study to a file and change it there."
                )
            before = changes.get(section, getattr(self, section))
            changes[section] = _merged(before, {entry: value})
        return dataclasses.replace(self, **changes)

    def runs(self) -> list[RunSettings]:
        """Every run; the settings of each decide its id, not its place in this list."""
        return list(self._runs)

    @functools.cached_property
    def _runs(self) -> list[RunSettings]:
        if self.networks:
            return _given_runs(self)
        runs: dict[str, RunSettings] = {}
        choices = [*([list(self.variants)] if self.variants else []), *self.grid.values()]
        _check_count(len(_seeds(self.seeds)) * math.prod(map(len, choices)))
        for values in itertools.product(*choices):
            axes = dict(zip(self.axes, values, strict=True))
            sections = {name: getattr(self, name) for name in SECTIONS}
            changes = dict(self.variants.get(axes.get(VARIANT, ""), {}))
            changes |= {key: value for key, value in axes.items() if key != VARIANT}
            for key, value in changes.items():
                section, entry = place(key)
                sections[section] = _merged(sections[section], {entry: value})
            first = RunSettings.from_sections(sections, seed=0, axes=axes)  # checked once
            for seed in _seeds(self.seeds):
                run = dataclasses.replace(first, seed=seed, axes=dict(axes))
                if run.id in runs:
                    raise SpiritlevelError(
                        f"The study's grid makes one run twice: {runs[run.id].axes} and {axes} "
                        "lead to the same settings. Momentum, for example, applies to SGD only: "
                        "set such keys together, with `variants`."
                    )
                runs[run.id] = run
        return list(runs.values())

    def given(self) -> dict[str, dict[str, Any]] | None:
        """The known outcomes of each network that was not trained here, with its name as "network".

        None where the study has a grid.
        """
        if not self.networks:
            return None
        pairs = zip(self.runs(), self.networks, strict=True)
        return {run.id: {"network": each["name"]} | each["outcomes"] for run, each in pairs}


def place(key: str) -> KeyPlace:
    """The section and entry that a key of the grid stands for.

    >>> place("lr"), place("model.hidden")
    (('training', 'lr'), ('model', 'hidden'))
    """
    section, _, entry = key.partition(".")
    if key in TRAINING:
        return "training", key
    if key in ("model", "data", "task"):
        return key, "name"
    if section in KEYS and entry:
        names = KEYS[section]
        if names is None or entry in names:
            return section, entry
    everything = [*TRAINING, "model", "data"]
    everything += [f"{name}.{key}" for name, keys in KEYS.items() for key in keys or ()]
    raise SpiritlevelError(
        f"The study's grid has an unknown key {key!r}.{suggestion(key, everything)} A key is one "
        f"of {', '.join(TRAINING)}, or names its section, such as model.hidden, data.samples or "
        "interventions.label_noise."
    )


def _grid(given: object) -> dict[str, list[Any]]:
    grid = as_mapping("grid", given)
    for key, values in grid.items():
        place(key)
        must_be(
            isinstance(values, list | tuple),
            f"grid.{key}",
            values,
            "a list of values",
            f"Put a single value under its section, or write [{values!r}].",
        )
        if not values:
            raise SpiritlevelError(
                f"The study's grid.{key} must have at least one value. Got an empty list, which "
                "leaves no runs at all. Leave the key out, or give values."
            )
        for value in values:
            if not is_scalar(value):
                raise SpiritlevelError(
                    f"The study's grid.{key} must hold plain numbers or names. Got {brief(value)}. "
                    "Give each choice a name: a factory of your own ('module:factory') can take "
                    "that name as an argument."
                )
        # As JSON: True and 1 are equal in Python and different settings.
        texts = [json.dumps(value) for value in values]
        if len(set(texts)) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise SpiritlevelError(
                f"The study's grid.{key} has {twice} more than once. Leave the second out. To "
                "repeat runs with other random numbers, raise `seeds`."
            )
    return {key: list(values) for key, values in grid.items()}


def _seeds(given: object) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        _check_count(given)
        return list(range(given))
    if isinstance(given, list | tuple) and given:
        whole = all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in given)
        if whole and len(set(given)) == len(given):
            return list(given)
    raise SpiritlevelError(
        "The study's seeds must be a number of at least 1, or a list of different whole numbers "
        f"of at least 0. Got {brief(given)}."
    )


def _check_count(number: int) -> None:
    if number > MAX_RUNS:
        raise SpiritlevelError(
            f"The study must have at most {MAX_RUNS:,} runs. Its grid and seeds make {number:,}. "
            "Take fewer seeds or values, or divide it into several studies."
        )


def _variants(given: object, grid: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    variants = {}
    for name, changes in as_mapping("variants", given).items():
        where = f"variants.{name}"
        variants[name] = as_mapping(where, changes)
        for key in variants[name]:
            place(key)
            if key in grid or f"training.{key}" in grid:
                raise SpiritlevelError(
                    f"The study's {where} sets {key}, and so does its grid. Leave one of them out."
                )
    return variants


def _networks(study: Study) -> list[dict[str, Any]]:
    """The networks of a study, checked, in plain types."""
    networks = read_networks(study.networks)
    others = ("grid", "variants", "presets", "measure_every")
    other = next((name for name in others if getattr(study, name)), "seeds")
    if networks and (other != "seeds" or study.seeds != [0]):
        raise SpiritlevelError(
            f"The study's networks are measured one by one, so they go without {other}. Leave one "
            "of them out."
        )
    return [dataclasses.asdict(network) for network in networks]


def _given_runs(study: Study) -> list[RunSettings]:
    runs: dict[str, RunSettings] = {}
    names: dict[str, str] = {}
    for network in study.networks:
        sections = {name: getattr(study, name) for name in SECTIONS}
        for section in ("model", "task"):
            if network[section]:
                sections[section] = _merged(sections[section], network[section])
        run = RunSettings.from_sections(sections, seed=network["seed"], axes=network["settings"])
        if run.id in runs:
            raise SpiritlevelError(
                f"The study's networks {names[run.id]!r} and {network['name']!r} are the same "
                "network. Leave one of them out."
            )
        runs[run.id], names[run.id] = run, network["name"]
    return list(runs.values())


def _merged(section: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A section with single keys changed."""
    before: dict[str, Any] = {"name": section} if isinstance(section, str) else dict(section or {})
    return before | dict(changes)


def _changed(section: Any, changes: Any) -> dict[str, Any]:
    """A section as a preset changes it; another model or data set drops the other keys."""
    after = _merged(changes, {})
    before = _merged(section, {})
    return after if after.get("name", before.get("name")) != before.get("name") else before | after


def _field_names() -> list[str]:
    return [field.name for field in dataclasses.fields(Study) if field.metadata != UNSAVED]
