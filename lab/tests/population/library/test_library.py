"""Every study that comes with the package can be tried in minutes, and be run as in the paper."""

import pytest

from spiritlevel_lab.population import control
from spiritlevel_lab.population.registry import study_names

pytestmark = pytest.mark.sampled(3)  # the others at night


@pytest.mark.parametrize("name", study_names())
def test_every_study_has_a_quick_and_a_paper_preset(name):
    study = control.find(name)
    assert {"quick", "paper"} <= set(study.presets)
    sizes = {preset: len(study.with_preset(preset).runs()) for preset in ("quick", "paper")}
    assert 0 < sizes["quick"] <= sizes["paper"]


def test_the_84_networks_of_the_paper_have_the_rates_it_names():
    runs = control.find("000-table-3").with_preset("paper").runs()
    assert len({run.id for run in runs}) == 84
    ways = {(run.training.optimizer, run.training.lr) for run in runs}
    named = {(optimizer, lr) for optimizer in ("sgd", "adamw") for lr in (0.005, 0.01)}
    assert named <= ways
    assert {run.training.batch_size for run in runs} == {64, 128}


@pytest.mark.parametrize(("name", "classifiers"), [("002-fig-3", 2), ("002-fig-4", 1)])
def test_the_paper_draws_100_data_sets_for_each_separation(name, classifiers):
    study = control.find(name)
    paper = study.with_preset("paper").runs()
    assert len(paper) == 100 * 8 * classifiers
    assert [run.id for run in paper] == [run.id for run in study.runs()]  # nothing is run twice
