"""Networks are ranked by what an audit of these networks lets through, and by nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.inputs import digits, mlp
from spiritlevel.measures.setup import Setup
from spiritlevel.verbs.comparison.scale import claimed, scales_of

BY = ["relative.kappa", "neuron.rho_sum"]


@pytest.fixture(scope="module")
def data():
    x, y = digits("train")
    return x[:300], y[:300]


def trained(epochs, data, hidden=16):
    """Trained on few samples, as far as so many epochs go."""
    x, y = data
    torch.manual_seed(1)
    model = mlp(hidden=(hidden,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def networks(data):
    return {f"e{epochs}": trained(epochs, data) for epochs in (60, 15, 3, 0)}


def rescaled(model):
    """The same function: each hidden neuron has a factor of its own."""
    other = copy.deepcopy(model)
    factors = torch.linspace(-2, 2, len(other.fc1.weight)).exp()
    with torch.no_grad():
        other.fc1.weight *= factors[:, None]
        other.fc1.bias *= factors
        other.head.weight /= factors
    return other


def test_two_networks_of_one_function_cannot_be_separated(networks, data):
    one, other = networks["e15"], rescaled(networks["e15"])
    x, _ = data
    torch.testing.assert_close(one(x), other(x), rtol=1e-4, atol=1e-4)
    found = sl.compare({"one": one, "other": other}, data, measures="relative.kappa")
    values = [found.value("relative.kappa", name).value for name in ("one", "other")]
    assert max(values) > 1.5 * min(values)  # κ tells them apart
    answer = found.answer()
    assert answer.tied == [("one", "other")]
    assert answer.measure == "neuron.rho_sum"
    assert found.scales["relative.kappa"].kind == "changes"
    assert "'one' and 'other' cannot be separated" in found.summary()[0]
    # the audit of that network says the same
    verdicts = sl.audit(one, (x[:8], data[1][:8]), measures=BY, budget=float("inf")).verdicts
    assert verdicts["relative.kappa"].kind == "scale"
    assert verdicts["neuron.rho_sum"].scale.kind == "unchanged"


def test_an_undertrained_network_does_not_change_the_order_of_the_others(networks, data):
    """Nor does an untrained one; at the confidence of either, all are alike."""
    few = {name: networks[name] for name in ("e60", "e15")}
    before = sl.compare(few, data, measures="neuron.rho_sum").answer()
    found = sl.compare(networks, data, measures="neuron.rho_sum")
    assert [str(place) for place in before.places.values()] == ["1", "2"]
    assert found.answer().places == before.places
    assert "'e3' and 'e0' are left out: their loss" in str(found)
    for name in ("e3", "e0"):
        assert found.losses[name] > torch.tensor(10.0).log() / 2


class Normalized(nn.Module):
    """Its hidden units can be rescaled against what a LayerNorm multiplies them by."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.first(x))))


def chain(activation, *between):
    return nn.Sequential(nn.Linear(6, 5), *between, activation, nn.Linear(5, 3))


def batch_norm():
    norm = nn.BatchNorm1d(5)
    norm.running_var.uniform_(0.5, 2.0)
    return norm


@pytest.mark.parametrize(
    ("make", "admitted"),
    [
        (lambda: chain(nn.ReLU()), {"neuron.rho_sum"}),
        (lambda: chain(nn.ReLU(), batch_norm()), {"neuron.rho_sum"}),
        (Normalized, {"neuron.rho_sum"}),
        (lambda: chain(nn.Tanh()), {"neuron.rho_sum", "relative.kappa"}),  # no neuron is rescaled
    ],
    ids=["relu", "batchnorm", "layernorm", "tanh"],
)
@pytest.mark.sampled(2)
def test_what_is_let_through_depends_on_the_architecture(make, admitted):
    torch.manual_seed(0)
    model = make().eval()
    data = torch.randn(40, 6), torch.randint(3, (40,))
    scales, _ = scales_of(Setup(), {"a": model, "b": copy.deepcopy(model)}, data, BY)
    assert {name for name, scale in scales.items() if scale.admits} == admitted


def test_of_two_architectures_the_worse_one_decides():
    torch.manual_seed(0)
    models = {"smooth": chain(nn.Tanh()).eval(), "relu": chain(nn.ReLU()).eval()}
    data = torch.randn(40, 6), torch.randint(3, (40,))
    scales, said = scales_of(Setup(), models, data, ["relative.kappa"])
    assert scales["relative.kappa"].kind == "changes"
    assert scales["relative.kappa"].text.endswith("in 'relu'")
    assert "neuron_rescale" in said


def test_the_audit_costs_no_more_with_more_samples_or_networks(data):
    model, calls = mlp(hidden=(8,)).eval(), []
    model.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    x, y = data
    samples = []
    for size, copies in ((100, 1), (300, 3)):
        calls.clear()
        scales_of(Setup(), dict.fromkeys("abc"[:copies], model), (x[:size], y[:size]), BY)
        samples.append(sum(calls))
    assert max(samples) < 1.1 * min(samples)
    assert max(samples) < 4000


def test_without_an_audit_a_card_must_claim_both_rescalings():
    kinds = {name: claimed(name).kind for name in (*BY, "curvature.trace")}
    assert kinds == {
        "relative.kappa": "changes",
        "neuron.rho_sum": "untested",
        "curvature.trace": "changes",
    }


def test_in_a_large_network_a_card_must_claim_what_was_not_searched(monkeypatch):
    """Attention and normalizations may have more symmetries than layers of a known kind show."""
    monkeypatch.setattr("spiritlevel.verbs.comparison.scale.SMALL", 10)
    monkeypatch.setattr("spiritlevel.verbs.comparison.scale.MOST_PARAMETERS", 10)
    data = torch.randn(20, 6), torch.randint(3, (20,))
    plain = scales_of(Setup(), {"a": chain(nn.ReLU()).eval()}, data, BY)[0]
    assert [plain[name].kind for name in BY] == ["changes", "untested"]
    bent = scales_of(Setup(), {"a": Normalized().eval()}, data, BY)[0]["neuron.rho_sum"]
    assert bent.kind == "open"
    assert "perhaps free_shift or unit_mix does; `audit` looks" in bent.text
