"""Losses that no closed form is known for say where their derivatives drown in rounding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.records.measurements import Status

LABELS = torch.tensor([0, 1, 2, 0])
ONE_HOT = F.one_hot(LABELS, 3)


def own(z, y):
    return F.cross_entropy(z, y, reduction="none")


def squared(z, y):
    return (z - y).square().sum(dim=1)


# Name: the loss, its targets, what the network ends in, and gaps with digits and without
CASES = {
    "function": (own, LABELS, nn.Identity(), 15.0, 33.0),
    "module": (nn.MultiLabelSoftMarginLoss(), ONE_HOT.double(), nn.Identity(), 12.0, 30.0),
    "nll": (nn.NLLLoss(), LABELS, nn.LogSoftmax(dim=1), 15.0, 33.0),
    "bce": (nn.BCELoss(), ONE_HOT.double(), nn.Sigmoid(), 12.0, 33.0),
}
STABLE = {
    "cross_entropy": (nn.CrossEntropyLoss(label_smoothing=1e-30), LABELS),
    "bce": ("bce", ONE_HOT.double()),
    "mse": ("mse", 33.0 * ONE_HOT.double() + 1e-12),
    "function": (squared, 33.0 * ONE_HOT.double() + 1e-12),
}


def network(gap, last):
    """Its outputs before the last layer are `gap` at the label, and 0 (or −gap) elsewhere."""
    model = nn.Sequential(nn.Linear(3, 3), last).double()
    with torch.no_grad():
        model[0].weight.copy_(gap * torch.eye(3))
        model[0].bias.zero_()
    return model, ONE_HOT.double()


def found(gap, loss, targets, last, **more):
    model, x = network(gap, last)
    bits = isinstance(last, nn.Sigmoid) or isinstance(loss, nn.MultiLabelSoftMarginLoss)
    x = 2 * x - 1 if bits else x
    return model, (x, targets), {"loss": loss} | more


@pytest.mark.parametrize("name", CASES)
def test_a_small_loss_is_doubted_and_a_larger_one_is_not(name):
    loss, targets, last, large, small = CASES[name]
    for gap, doubted in ((large, False), (small, True)):
        model, data, how = found(gap, loss, targets, last)
        report = sl.measure(model, data, measures=["curvature.trace", "norms.weight"], **how)
        pairs = sl.eigenvalues(model, data, **how)
        trace = report["curvature.trace"]
        assert (trace.status is Status.NOT_CONVERGED) is doubted
        assert trace.exact is not doubted or not trace.exact
        assert report["norms.weight"].exact  # it has nothing to do with the loss
        assert pairs.converged == [not doubted]
        assert ("lost_digits" in pairs.settings) is doubted
        if doubted:
            assert "rounding may be" in trace.text
            assert "pass loss='cross_entropy'" in trace.text
            assert "rounding may be" in str(pairs)
            layers = report.layers["curvature.trace"].values()
            assert all(layer.status is Status.NOT_CONVERGED for layer in layers)


@pytest.mark.parametrize("name", STABLE)
def test_losses_that_keep_their_digits_are_not(name):
    loss, targets = STABLE[name]
    model, data, how = found(33.0, loss, targets, nn.Identity())
    trace = sl.measure(model, data, measures="curvature.trace", **how)["curvature.trace"]
    assert trace.status is Status.OK
    assert sl.eigenvalues(model, data, **how).converged == [True]


def test_a_network_in_float32_is_doubted_earlier():
    model, (x, y), how = found(15.0, nn.NLLLoss(), LABELS, nn.LogSoftmax(dim=1))
    wide = sl.measure(model, (x, y), measures="curvature.trace", **how)
    single = sl.measure(model.float(), (x.float(), y), measures="curvature.trace", **how)
    assert wide["curvature.trace"].status is Status.OK
    assert single["curvature.trace"].status is Status.NOT_CONVERGED
    assert "measure in float64" in single["curvature.trace"].text


# -- saturated activations -------------------------------------------------------------------------


def mislabelled(activation, shift, dtype):
    """A confident network whose labels are all wrong, with its units near `shift`."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        model[0].bias.fill_(shift)
        model[2].bias.copy_(torch.tensor([25.0, 0.0, -1.0]))
    x = torch.randn(6, 3, generator=generator)
    return model.to(dtype).eval(), (x.to(dtype), torch.ones(6, dtype=torch.int64))


def first_layer(activation, shift, dtype):
    model, data = mislabelled(activation, shift, dtype)
    return sl.measure(model, data, measures="curvature.trace", layers="0")["curvature.trace"]


@pytest.mark.parametrize(
    "activation", [nn.Softplus(), nn.SiLU(), nn.LogSigmoid(), nn.Mish(), nn.GELU("tanh")], ids=str
)
def test_a_saturated_network_has_its_digits_in_float32(activation):
    shift = 4.5 if isinstance(activation, nn.GELU) else 16.0
    single, wide = (first_layer(activation, shift, d) for d in (torch.float32, torch.float64))
    assert single.exact
    assert wide.exact
    assert single.value == pytest.approx(wide.value, rel=1e-5)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid()], ids=str)
def test_what_the_forward_has_lost_is_said(activation):
    shift = 6.0 if isinstance(activation, nn.Tanh) else 14.0
    single, wide = (first_layer(activation, shift, d) for d in (torch.float32, torch.float64))
    assert wide.exact
    assert single.value != pytest.approx(wide.value, rel=1e-4)
    assert single.status is Status.NOT_CONVERGED
    assert "a function of single elements is so saturated that rounding may be" in single.text
    assert first_layer(activation, 1.0, torch.float32).exact
