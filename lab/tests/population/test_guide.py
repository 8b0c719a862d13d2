"""The guide to studies names every key there is, and what it shows is a study."""

import dataclasses
import pathlib
import re

import pytest

from spiritlevel.records.reading import UNSAVED
from spiritlevel_lab import Study
from spiritlevel_lab.population import control
from spiritlevel_lab.population.settings.keys import CHECK, readers_of
from spiritlevel_lab.population.settings.sections import (
    DataSettings,
    InterventionSettings,
    MeasureSettings,
    ModelSettings,
    StopSettings,
)
from spiritlevel_lab.population.settings.training import ALWAYS, TrainingSettings

SECTIONS = (
    ModelSettings,
    DataSettings,
    StopSettings,
    InterventionSettings,
    TrainingSettings,
    MeasureSettings,
)
STUDY = [field.name for field in dataclasses.fields(Study) if field.metadata != UNSAVED]
GUIDE = (pathlib.Path(__file__).parents[3] / "docs" / "studies.md").read_text("utf-8")
ROWS = "\n".join(line.partition(" | ")[0] for line in GUIDE.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_in_the_guide(section):
    keys = [*STUDY, "name", *readers_of(section)]
    assert [key for key in keys if f"`{key}`" not in GUIDE] == []


def test_every_key_of_the_tables_is_known():
    keys = {key for section in SECTIONS for key in readers_of(section)}
    assert set(re.findall(r"`(\w+)`", ROWS)) <= {*STUDY, "name", *keys}


def test_the_defaults_in_the_guide_are_those_of_the_program():
    row = re.compile(r"^\| (`[^|]+) \| ([^|]*) \|", flags=re.M)
    found = {}
    for keys, values in row.findall(GUIDE[GUIDE.index("**`training`**") :]):
        names = re.findall(r"`(\w+)`", keys)
        found |= dict(zip(names, (v.strip() for v in values.split(",")), strict=False))
    fields = {field.name: field for field in dataclasses.fields(TrainingSettings)}
    given = {n: f for n, f in fields.items() if found.get(n) and f.default is not None}
    assert set(ALWAYS) <= set(given)
    for name, field in given.items():
        assert field.metadata[CHECK].read(name, _plain(found[name])) == field.default, name


def _plain(text: str) -> object:
    return {"false": False, "true": True}.get(text, text)


def test_the_example_is_a_study():
    [text] = re.findall(r"```text\n(name: .*?)```", GUIDE, flags=re.S)
    study = Study.from_yaml(text)
    control.check(study)
    assert len(study.runs()) == 2 * 2 * 5
    assert study.with_preset("quick").runs()[0].training.epochs == 20
