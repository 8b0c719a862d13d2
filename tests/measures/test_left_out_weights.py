"""A sum over layers says how many weights are in it, and names those that are not."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl


class Functional(nn.Module):
    """Two weights of several dimensions that are no matrices, a vector, and a layer."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Bilinear(2, 2, 4)
        self.places = nn.Parameter(torch.randn(3, 4) / 2)
        self.shift = nn.Parameter(torch.randn(1, 1, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.mix(x[:, :2], x[:, 2:]))[:, None] + self.places + self.shift
        return self.head(x.relu().mean(dim=1))


@pytest.fixture
def report(generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Functional().double().eval()
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return sl.measure(model, (x, torch.arange(6) % 3), measures=["relative.*", "neuron.rho_sum"])


@pytest.mark.parametrize("name", ["relative.kappa", "relative.kappa_max", "neuron.rho_sum"])
def test_what_is_left_out_is_named(report, name):
    m = report[name]
    assert m.settings["weights"] == "1 of 3"
    assert m.settings["weights_left_out"] == ["places", "mix.weight"]
    assert "1 of 3 weights; left out" in m.text
    assert m.text.endswith("'places', 'mix.weight'")


def test_it_is_in_the_table_and_in_json(report):
    assert "1 of 3 weights" in str(report)
    saved = json.loads(report.to_json())
    assert "left out" in json.dumps(saved)
    assert sl.results.Report.from_json(report.to_json()) == report


def test_a_whole_network_has_no_note(generator):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    m = sl.measure(model, (x, torch.arange(6) % 3), measures="relative.kappa")["relative.kappa"]
    assert m.settings["weights"] == "2 of 2"
    assert m.settings["weights_left_out"] == []
    assert "left out" not in m.text


def test_measures_that_only_a_pattern_matched_are_left_out_and_named(generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0, 0)).double()
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    report = sl.measure(model, (x, y), measures=["head.trace", "softmax.*"], loss="mse")
    assert list(report) == ["head.trace"]
    assert "softmax.gini" in report.settings["left_out"]
    assert "cross_entropy" in report.settings["left_out"]["softmax.gini"]
    assert "left out, since they need the loss 'cross_entropy': softmax." in str(report)
    assert sl.results.Report.from_json(report.to_json()) == report
