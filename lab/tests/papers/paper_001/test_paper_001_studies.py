"""Paper 001: studies that can be run as they stand, and pages that can be written."""

import dataclasses

import numpy
import pytest

from publishing.recorded import Record
from publishing.render import render
from publishing.results import ScaleResult
from spiritlevel_lab.papers import find
from spiritlevel_lab.population import control

pytestmark = pytest.mark.sampled(3)  # the others at night

NAMES = [
    "001-a6",
    *(f"001-fig-{i}" for i in range(3, 10)),
    *(f"001-table-{i}" for i in range(2, 6)),
]
AXES = {
    "001-fig-4": [{"interventions.batch_cycles": r} for r in (1, 5)],
    "001-fig-5": [
        {"variant": name}
        for name in ("plain", "augmented", "plain, norms fixed", "augmented, norms fixed")
    ],
    "001-fig-6": [
        {"norm_control": fixed, "interventions.input_noise": n}
        for fixed in (False, True)
        for n in (0.0, 0.3)
    ],
    "001-fig-9": [{"interventions.input_noise": n} for n in (0.0, 0.3)],
    "001-fig-7": [{"lr": 0.01}, {"lr": 0.1}],
    "001-fig-8": [{}],
    "001-table-3": [{"interventions.leakage": kind} for kind in ("class", "control")],
    "001-table-4": [{}],
    "001-table-5": [{"interventions.mask": mask} for mask in (0.0, 0.7)],
}


@pytest.mark.parametrize("name", NAMES)
def test_page_of_every_experiment_can_be_written(name):
    study = control.find(name)
    axes = AXES.get(name) or [{"variant": each} for each in study.variants]
    empty = dict.fromkeys(find(name).columns, 1.0) | {"outcome": "epochs"}
    rows = [empty | axis | {"seed": seed} for axis in axes for seed in range(2)]
    record = Record(name, "", (), 1.0, 0, tuple(rows))
    page = render([ScaleResult.of(record)])
    assert f"# {name}" in page
    assert "nan" not in page


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_makes_runs_with_the_columns_asked_for(name):
    study, experiment = control.find(name), find(name)
    assert {"quick", "h200", "paper"} <= set(study.presets)
    for each in (study, *map(study.with_preset, study.presets)):
        for run in each.runs():
            assert set(experiment.columns) & {*run.axes} == {*run.axes}
            assert set(experiment.measures) <= set(run.measures)
    axes = [dict(run.axes) for run in study.with_preset("h200").runs()]
    assert len(axes) == len(study.with_preset("h200").seeds) * len({str(axis) for axis in axes})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Files with images of the shape of those that would have to be fetched, by their name."""
    found = {"boolq.npz": "digits"}  # a task makes texts of it
    shapes = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}
    for name, shape in shapes.items():
        x, y = (
            numpy.zeros((100, *shape), "uint8"),
            numpy.arange(100) % (100 if "100" in name else 10),
        )
        found[name] = str(tmp_path_factory.mktemp(name) / f"{name}.npz")
        numpy.savez(found[name], x_train=x, y_train=y, x_test=x, y_test=y)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_network_can_be_built(name, images):
    """Checked as a run would be, on images of the same shape where the study's are not fetched."""
    study = control.find(name)
    for each in (study, *map(study.with_preset, study.presets)):
        fields = {"data": images[each.data["name"]]} if each.data["name"] != "digits" else {}
        control.check(dataclasses.replace(each, presets={}, seeds=1, **fields))
