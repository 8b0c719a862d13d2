"""A study lets go of the networks that it trained."""

import gc

from torch import nn

from spiritlevel_lab import Study, run


def num_networks() -> int:
    gc.collect()
    return sum(issubclass(type(thing), nn.Module) for thing in gc.get_objects())


def test_a_study_keeps_no_network(tmp_path):
    networks = num_networks()
    definition = {
        "name": "tiny",
        "model": {"name": "mlp", "hidden": 4},
        "data": {"name": "digits", "samples": 30},
        "training": {"epochs": 1},
        "seeds": 3,
        "measures": ["relative.kappa"],
    }
    run(Study.from_dict(definition), str(tmp_path / "tiny")).close()
    assert num_networks() == networks
