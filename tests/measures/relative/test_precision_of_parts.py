"""Maxima and sums with a known number are as precise as asked, or say what would help."""

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


def test_with_a_decay_that_nearly_cancels_it_goes_on():
    """κ is about −30: with 15 of decay the same width is twice as much of the value."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        net = nn.Sequential(*net, nn.Linear(8, 3), nn.Tanh()).double().eval()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter *= 4
    squares = sum(m.weight.shape[1] * float(m.weight.square().sum()) for m in net[::2])
    m = sl.measure(
        net,
        (random(24, 5), classes(24, 3)),
        measures="relative.kappa_decay",
        method="hutchinson",
        rtol=0.1,
        max_passes=4000,
        options={"weight_decay": 15 / squares},
    )["relative.kappa_decay"]
    low, high = m.interval
    assert m.value < 0
    assert m.status is sl.results.Status.OK
    assert high - low <= 0.2 * abs(m.value)
