"""The pages about data and networks say what a study can do with them."""

import inspect
import pathlib
import re

import pytest

from spiritlevel_lab import Study
from spiritlevel_lab.population import interventions
from spiritlevel_lab.population.settings.keys import readers_of
from spiritlevel_lab.population.settings.sections import InterventionSettings

DOCS = pathlib.Path(__file__).parents[3] / "docs"
DATA, MODELS = ((DOCS / name).read_text("utf-8") for name in ("data.md", "models.md"))
FUNCTIONS = [n for n in interventions.__all__ if inspect.isfunction(getattr(interventions, n))]
TABLE = DATA[DATA.index("| function | what it does | in a study |") :]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_shown_with_their_own_arguments(name):
    [given] = re.findall(rf"`{name}\(([^)]*)\)`", TABLE)
    shown = [argument.rstrip("=") for argument in given.split(", ")]
    assert shown == list(inspect.signature(getattr(interventions, name)).parameters)


def test_every_key_of_a_study_is_there():
    of_training = {"batch_cycles"}  # changes neither data nor network
    assert [
        key for key in set(readers_of(InterventionSettings)) - of_training if f"`{key}" not in TABLE
    ] == []


def test_what_the_page_of_data_shows_for_a_study_is_understood():
    [text] = re.findall(r"```text\n(interventions: .*?)```", DATA, flags=re.S)
    assert len(Study.from_yaml(f"name: shown\n{text}").runs()) == 3


def test_what_the_page_of_models_shows_for_a_study_is_understood():
    [text] = re.findall(r"```text\n(model: .*?)```", MODELS, flags=re.S)
    *given, grid = text.splitlines()
    assert len(given) == 3
    for line in given:
        Study.from_yaml(f"name: shown\n{line}\n")
    assert len(Study.from_yaml(f"name: shown\n{given[0]}\n{grid}\n").runs()) == 2
