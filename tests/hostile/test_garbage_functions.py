"""What reads files and names refuses wrong arguments in our own words, whatever they are."""

import pytest

from hostile import garbage
from hostile.calls import refused_calls
from hostile.records import network
from spiritlevel import training
from spiritlevel.inputs import checkpoints, models
from spiritlevel.inputs import data as data_sets
from spiritlevel.pages import report


def functions() -> dict:
    """Functions with arguments, of which one at a time is replaced."""
    net = network(0)
    return {
        data_sets.load: {"name_or_path": "digits", "split": "train", "size": None},
        data_sets.read_npz: {"path": "none.npz", "split": "train"},
        models.build: {"spec": "mlp", "seed": 0},
        checkpoints.load_checkpoint: {"model": net, "path": "none.pt"},
        checkpoints.save_checkpoint: {"model": net, "path": "weights.safetensors"},
        report.read: {"path": "none.json"},
        training.build_penalty: {"name": "head_kappa", "model": net, "weight": 0.1},
        training.FlatnessPenalty: {"model": net, "weight": 0.1, "every": 1},
        training.KappaPenalty: {"model": net, "weight": 0.1, "every": 1, "layer": "2"},
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(len(garbage.values())))
def test_one_wrong_value_in_every_place(tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    assert refused_calls(functions(), number) > 6
