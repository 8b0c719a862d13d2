"""What reads files and names refuses wrong arguments in our own words, whatever they are."""

import pytest

import spiritlevel as sl
import spiritlevel_lab as study
from hostile import garbage
from hostile.records import network
from spiritlevel import training
from spiritlevel.inputs import checkpoints, models
from spiritlevel.inputs import data as data_sets
from spiritlevel.pages import report
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


def functions() -> dict:
    """Functions with arguments, of which one at a time is replaced."""
    net = network(0)
    return {
        data_sets.load: {"name_or_path": "digits", "split": "train", "size": None},
        data_sets.read_npz: {"path": "none.npz", "split": "train"},
        models.build: {"spec": "mlp", "seed": 0},
        checkpoints.load_checkpoint: {"model": net, "path": "none.pt"},
        checkpoints.save_checkpoint: {"model": net, "path": "weights.safetensors"},
        control.find: {"name_or_path": "digits"},
        study.Store.open: {"folder": "nowhere"},
        study.resume: {"folder": "nowhere"},
        study.run: {"study": study.Study(**FIELDS), "folder": "nowhere", "preset": "none"},
        study.Study: FIELDS,
        study.Study.from_yaml: {"text": "name: x"},
        study.Study.from_dict: {"fields": {"name": "x"}},
        report.read: {"path": "none.json"},
        training.build_penalty: {"name": "head_kappa", "model": net, "weight": 0.1},
        training.FlatnessPenalty: {"model": net, "weight": 0.1, "every": 1},
        training.KappaPenalty: {"model": net, "weight": 0.1, "every": 1, "layer": "2"},
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(len(garbage.values())))
def test_one_wrong_value_in_every_place(tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    refused = 0
    for function, arguments in functions().items():
        for name in arguments:
            value = garbage.values()[number]
            try:
                function(**(arguments | {name: value}))
            except sl.SpiritlevelError:
                refused += 1
            except Exception as error:
                text = f"{function.__qualname__}({name}={garbage.name(value)}) raised"
                raise AssertionError(f"{text} {type(error).__name__}: {error}") from error
    assert refused > 10
