"""The page about data names every reader, data set, augmentation and intervention there is."""

import inspect
import pathlib
import re

import pytest

from spiritlevel.inputs import data
from spiritlevel.inputs.data import CATALOGUE
from spiritlevel_lab import Study
from spiritlevel_lab.population import interventions
from spiritlevel_lab.population.settings.interventions import InterventionSettings
from spiritlevel_lab.population.settings.keys import readers_of

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
FUNCTIONS = [n for n in interventions.__all__ if inspect.isfunction(getattr(interventions, n))]
TABLE = PAGE[PAGE.index("| function | what it does | in a study |") :]


def test_every_reader_and_data_set_is_there():
    assert [name for name in (*data.__all__, *CATALOGUE) if f"`{name}" not in PAGE] == []


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


def test_the_sets_known_by_md5_alone_are_named():
    [named] = re.findall(r"no SHA-256 is known from several\s+places \((.*?)\)", PAGE, flags=re.S)
    weak = {n.removesuffix("-python") for n, e in CATALOGUE.items() if _has_md5(e)}
    assert {name.lower().replace("cifar-", "cifar") for name in re.split(r",\s+", named)} == weak


def _has_md5(entry) -> bool:
    return any(file.checksum.startswith("md5:") for file in entry.files)


def test_what_is_shown_for_a_study_is_understood():
    [text] = re.findall(r"```text\n(interventions: .*?)```", PAGE, flags=re.S)
    assert len(Study.from_yaml(f"name: shown\n{text}").runs()) == 3
