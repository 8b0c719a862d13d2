"""Curvature in a layer's output against dense Hessians of the rest of the network."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import spiritlevel as sl

CLASSES = 3


class Parts(nn.Module):
    """A network that is cut behind its first part."""

    def __init__(self, first, rest):
        super().__init__()
        self.first, self.rest = first, rest

    def forward(self, x):
        return self.rest(self.first(x))


class Attention(nn.Module):
    """Tokens (N, T, D) to classes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(dim=1))


def convnet(activation):
    rest = nn.Sequential(
        activation(), nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), activation(), nn.Flatten()
    )
    return Parts(nn.Conv2d(1, 2, 2), nn.Sequential(*rest, nn.Linear(12, CLASSES))), (1, 4, 4)


def problem(name):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        if name == "attention":
            model, shape = Parts(nn.Linear(2, 4), Attention()), (3, 2)
        else:
            model, shape = convnet({"relu": nn.ReLU, "gelu": nn.GELU}[name])
        x, y = torch.randn(7, *shape).double(), torch.randint(0, CLASSES, (7,))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.normal_(module.running_mean)
    return model.double().eval(), (x, y)


def dense(model, x, target, kind, loss):
    """The matrix of one sample, from torch.func alone."""
    z = model.first(x[None]).detach()

    def outputs(flat):
        return model.rest(flat.view(z.shape))[0]

    def of_outputs(o):
        if loss == "mse":
            return F.mse_loss(o, target)
        return F.cross_entropy(o[None], target[None])

    flat = z.flatten()
    if kind == "hessian":
        return torch.autograd.functional.hessian(lambda v: of_outputs(outputs(v)), flat)
    J = torch.func.jacrev(outputs)(flat)
    return J.T @ torch.func.hessian(of_outputs)(outputs(flat)) @ J


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("name", ["relu", "gelu", "attention"])
def test_every_sample_agrees_with_its_dense_matrix(name, kind, loss):
    model, (x, y) = problem(name)
    if loss == "mse":
        y = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(1)).double()
    found = sl.activation_curvature(
        model, [(x[:4], y[:4]), (x[4:], y[4:])], layer="first", kind=kind, loss=loss
    )
    with sdpa_kernel(SDPBackend.MATH):  # the fast kernels have no second derivative
        matrices = [dense(model, *pair, kind, loss).detach() for pair in zip(x, y, strict=True)]
    shape = model.first(x[:1]).shape[1:]
    by_sample = torch.stack([matrix.diagonal() for matrix in matrices]).view(-1, *shape)
    channels = by_sample.sum(dim=1) if name == "attention" else by_sample.sum(dim=(2, 3))
    close = {"rtol": 1e-9, "atol": 1e-13}
    torch.testing.assert_close(found.samples, channels, **close)
    torch.testing.assert_close(found.diagonal, by_sample.mean(dim=0), **close)
    torch.testing.assert_close(found.channels, channels.mean(dim=0), **close)
    assert found.trace == pytest.approx(float(channels.sum() / 7), rel=1e-9)
    assert bool(found.bends) == (kind == "hessian" and name != "relu")
    expected = channels.std(dim=0) / 7**0.5
    torch.testing.assert_close(found.data_stderr, expected, **close)


def test_a_bending_network_has_another_ggn():
    model, data = problem("gelu")
    hessian, ggn = (
        sl.activation_curvature(model, data, layer="first", kind=kind)
        for kind in ("hessian", "ggn")
    )
    assert abs(hessian.trace - ggn.trace) > 1e-3 * abs(ggn.trace)


def test_targets_that_do_not_count_are_not_counted():
    model, (x, y) = problem("relu")
    ignored = y.clone()
    ignored[2] = -100
    keep = [i for i in range(7) if i != 2]
    found = sl.activation_curvature(model, (x, ignored), layer="first")
    expected = sl.activation_curvature(model, (x[keep], y[keep]), layer="first")
    torch.testing.assert_close(found.channels, expected.channels)
    assert float(found.samples[2].abs().sum()) == 0.0


def test_the_model_stays_as_it_is():
    model, data = problem("relu")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = sl.activation_curvature(model, data, layer="first")
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert "trace of the Hessian" in str(found)
    assert found.cost.backwards >= 7 * (CLASSES - 1)


def test_channels_may_be_elsewhere():
    model, data = problem("attention")
    tokens = sl.activation_curvature(model, data, layer="first", channel_dim=1)
    assert tokens.channels.shape == (3,)
    torch.testing.assert_close(tokens.channels, tokens.diagonal.sum(dim=1))


def test_a_layer_with_several_outputs():
    model, data = problem("attention")
    found = sl.activation_curvature(model, data, layer="rest.attention", kind="ggn")
    assert found.diagonal.shape == (3, 4)
    # what attention returns is added to its input: both have the same curvature behind the sum
    x = model.first(data[0]).detach()
    rest = model.rest
    with torch.no_grad():
        z = x + rest.attention(x, x, x, need_weights=False)[0]

    def outputs(flat, n):
        return rest.head(rest.norm(flat.view(1, 3, 4)).mean(dim=1))[0]

    total = torch.zeros(12).double()
    for n in range(7):
        J = torch.func.jacrev(outputs)(z[n].flatten(), n)
        p = outputs(z[n].flatten(), n).softmax(dim=0)
        total += (J.T @ (p.diag() - p.outer(p)) @ J).diagonal().detach() / 7
    torch.testing.assert_close(found.diagonal.flatten(), total, rtol=1e-9, atol=1e-13)


class Odd(nn.Module):
    """Calls one layer twice, another never, and does not use what a third one returns."""

    def __init__(self):
        super().__init__()
        self.twice, self.never, self.aside = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.head = nn.Linear(2, CLASSES)

    def forward(self, x):
        x = self.twice(self.twice(x))
        self.aside(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"layer": "twise"}, "Did you mean 'twice'"),
        ({"layer": "twice"}, "called 2 times"),
        ({"layer": "never"}, "called 0 times"),
        ({"layer": "aside"}, "whose output reaches the network's. That of 'aside' does not"),
        ({"layer": "head", "kind": "hesian"}, "Did you mean 'hessian'"),
        ({"layer": "head", "channel_dim": 2}, "from 1 to 1. Got 2"),
    ],
)
def test_refusals(arguments, match):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Odd().double().eval()
        data = torch.randn(5, 2).double(), torch.randint(0, CLASSES, (5,))
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.activation_curvature(model, data, **arguments)


def test_large_outputs_of_bending_networks_are_refused(monkeypatch):
    monkeypatch.setattr("spiritlevel.verbs.activations.MOST_ENTRIES", 17)
    model, data = problem("gelu")
    with pytest.raises(sl.SpiritlevelError, match=r"at most 17.*Got 18\. Use kind='ggn'"):
        sl.activation_curvature(model, data, layer="first")
