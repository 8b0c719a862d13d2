"""The weight decay that relative.kappa_decay needs is that of the run's optimizer."""

import pytest

from spiritlevel_lab import Study
from spiritlevel_lab.population.runs.running import options_of


@pytest.mark.parametrize(("optimizer", "expected"), [("sgd", 0.01), ("adam", 0.01), ("adamw", 0.0)])
def test_a_run_knows_its_own(optimizer, expected):
    training = {"optimizer": optimizer, "weight_decay": 0.01}
    [run] = Study("s", training=training).runs()
    assert options_of(run, {})["weight_decay"] == expected
    [told] = Study("s", measure_options={"options": {"weight_decay": 0.5}}).runs()
    assert options_of(told, {})["weight_decay"] == 0.5
