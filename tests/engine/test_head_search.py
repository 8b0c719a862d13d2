"""Which layer is the head: found by itself, named, or refused with the candidates."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references
from zoo.wirings import ConvHead, TiedDecoder


class Named(nn.Module):
    """Two layers of the outputs' size; the last one gives the outputs."""

    def __init__(self, *, temperature=None, last=3):
        super().__init__()
        self.body, self.fc = nn.Linear(4, 3), nn.Linear(3, last)
        self.temperature = temperature

    def forward(self, x):
        z = self.fc(self.body(x).relu())
        return z if self.temperature is None else z / self.temperature


def named(**options):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Named(**options).double().eval()


@pytest.fixture
def data(generator):
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0, 1, 2, 0, 1])


def test_the_head_is_found_by_itself(data):
    found = sl.measure(named(), data, measures="head.trace")["head.trace"]
    assert found.settings["head"] == "fc"
    assert found.text == "layer 'fc'"


def test_of_two_layers_that_give_the_outputs_the_last_is_the_head(data):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).double().eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(3))
        model[1].bias.zero_()
    found = sl.measure(model, data, measures="head.trace")["head.trace"]
    assert found.settings["head"] == "1"


def test_the_head_may_be_named(data):
    model = named()
    found = sl.measure(model, data, measures="head.trace", head="fc")["head.trace"]
    alone = sl.measure(model, data, measures="head.trace")["head.trace"]
    assert found.value == alone.value


def test_a_head_may_be_the_whole_model(data):
    model = nn.Linear(4, 3).double().eval()
    found = sl.measure(model, data, measures="head.trace")["head.trace"]
    H = references.Truth(model, [data], F.cross_entropy).hessian(["weight"])
    assert found.value == pytest.approx(float(H.trace()), rel=1e-9)


def test_a_head_whose_outputs_are_squeezed_is_found(data):
    # Regression in its usual form: Linear(d, 1), then squeeze(-1).
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))
        model = model.double().eval()
    x, y = data
    batch = (x, y.double())
    found = sl.measure(model, batch, loss="mse", measures="head.trace")["head.trace"]
    H = references.Truth(model, [batch], F.mse_loss).hessian(["2.weight"])
    assert found.value == pytest.approx(float(H.trace()), rel=1e-9)


def test_no_head_lists_the_candidates_and_why_not(data):
    with pytest.raises(sl.SpiritlevelError, match="No head was found") as caught:
        sl.measure(named(temperature=2.0), data, measures="head.trace")
    text = str(caught.value)
    assert "Candidates: body: its pooled output differs from the network's by" in text
    assert "; fc: its pooled output differs from the network's by" in text
    assert "Leave head.* out of 'measures'" in text


def test_a_grouped_convolution_is_no_head():
    model = ConvHead(nn.Conv2d(2, 2, 1, groups=2)).double().eval()
    batch = (torch.randn(3, 2, 2, 2).double(), torch.tensor([0, 1, 0]))
    with pytest.raises(sl.SpiritlevelError, match="conv: a grouped convolution has no common"):
        sl.measure(model, batch, measures="head.kappa")


def test_a_head_named_wrongly_is_refused_with_the_candidates(data):
    match = r"Got 'classifier'\. Candidates: body: .*; fc: fits\."
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(named(), data, measures="head.trace", head="classifier")


def test_a_layer_that_is_not_the_head_is_refused_with_the_reason(data):
    match = "'body' cannot be measured in closed form as the head: its pooled output differs"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(named(), data, measures="head.trace", head="body")
    match = "it gives 3 values per sample, the network 5"
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.measure(named(last=5), data, measures="head.trace", head="body")


def test_default_measures_leave_the_head_out_where_there_is_none(data):
    report = sl.measure(named(temperature=2.0), data)
    assert not [name for name in report if name.startswith("head.")]
    assert "curvature.trace" in report


def test_layers_head_measures_that_layer_alone(data):
    model = named()
    report = sl.measure(model, data, measures=["relative.kappa", "curvature.trace"], layers="head")
    assert list(report.layers["relative.kappa"]) == ["fc"]
    H = references.Truth(model, [data], F.cross_entropy).hessian(["fc.weight", "fc.bias"])
    assert report["curvature.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)


def test_a_frozen_head_is_still_measured_in_closed_form(data):
    model = named()
    truth = references.Truth(model, [data], F.cross_entropy)
    expected = float(truth.hessian(["fc.weight"]).trace())
    model.fc.requires_grad_(False)
    found = sl.measure(model, data, measures="head.trace")["head.trace"]
    assert found.value == pytest.approx(expected, rel=1e-9)


class CalledTwice(nn.Module):
    """z = W·relu(W·x): the outputs are the layer's, but not linear in its weight."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.fc(self.fc(x).relu())


@pytest.mark.parametrize("build", [CalledTwice, TiedDecoder], ids=["called twice", "tied below"])
def test_a_head_whose_weight_is_used_below_is_not_called_that_weights_hessian(build, generator):
    # The closed form holds the other use fixed. To refuse, to change the label, or to say so in the
    # text: each is right.
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = build().double().eval()
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    x = x if build is CalledTwice else torch.randint(4, (5, 3), generator=generator)
    batch = (x, torch.tensor([0, 1, 2, 0, 1]))
    weight = "fc.weight" if build is CalledTwice else "embedding.weight"
    H = references.Truth(model, [batch], F.cross_entropy).hessian([weight])
    with contextlib.suppress(sl.SpiritlevelError):
        report = sl.measure(model, batch, measures="head.*")
        found = report["head.trace"].value
        assert found != pytest.approx(float(H.trace()), rel=1e-3)  # so the label matters
        assert all("used" in m.text for m in report.values() if m.exact)
