"""A maximum is as precise as asked, or the text says what would make it so."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from zoo.plain import classes, random


@pytest.fixture(scope="module")
def problem():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        net = nn.Sequential(*net, nn.Linear(8, 3)).double().eval()
    return net, (random(24, 5), classes(24, 3))


@pytest.mark.parametrize(("passes", "advice"), [(2000, "so lower rtol"), (6, ": raise max_passes")])
def test_a_maximum_says_what_makes_it_more_precise(problem, passes, advice):
    """Probes end with the sum over the layers: then more passes would change nothing."""
    names = ["relative.kappa_max", "scaled.trace_max", "neuron.rho_max"]
    options = {"method": "hutchinson", "rtol": 0.2, "max_passes": passes}
    wide = [
        m.text
        for m in sl.measure(*problem, measures=names, **options).values()
        if "wider than" in m.text
    ]
    assert wide
    assert all(advice in text for text in wide)
