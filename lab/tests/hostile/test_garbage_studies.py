"""What reads studies refuses wrong arguments in our own words, whatever they are."""

import pytest

import spiritlevel_lab as lab
from hostile import garbage
from hostile.calls import refused_calls
from spiritlevel_lab.population import control

FIELDS = {
    "name": "x",
    "description": "",
    "model": "mlp",
    "data": "digits",
    "training": {},
    "grid": {},
    "seeds": 1,
    "interventions": {},
    "stop": {},
    "measures": None,
    "measure_options": {},
    "presets": {},
    "variants": {},
    "measure_every": None,
    "epoch_measures": None,
    "task": None,
}
CALLS = {
    control.find: {"name_or_path": "digits"},
    lab.Store.open: {"folder": "nowhere"},
    lab.resume: {"folder": "nowhere"},
    lab.run: {"study": lab.Study(**FIELDS), "folder": "nowhere", "preset": "none"},
    lab.Study: FIELDS,
    lab.Study.from_yaml: {"text": "name: x"},
    lab.Study.from_dict: {"fields": {"name": "x"}},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(len(garbage.values())))
def test_one_wrong_value_in_every_place_of_a_study(tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    assert refused_calls(CALLS, number) > 4
