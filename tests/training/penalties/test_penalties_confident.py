"""Tr(H²)/B of confident networks in float32, its gradient and the loss, against float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import FlatnessPenalty
from spiritlevel.training.penalties.random_signs import draw_signs
from spiritlevel.training.penalties.third_derivatives import thrice_differentiable

FACTORS = {"cross_entropy": (3.0, 9.0, 14.0), "bce": (6.0, 16.0, 25.0)}  # losses to 1e-12
SINGLE = 1e-4  # outputs of 25 are rounded by 1e-6, and their exponentials with them
CLASSES = {
    "cross_entropy": nn.CrossEntropyLoss,
    "bce": nn.BCEWithLogitsLoss,
}
X = torch.tensor([[0.5, -0.2], [1.0, 0.3], [-0.4, 0.8], [0.1, -1.0]])
LABELS = torch.tensor([0, 0, 1, 2])


def network(factor):
    """Its logits are `factor` at the label and its negative elsewhere, nearly."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        features = torch.cat([model[:2](X.double()), torch.ones(4, 1).double()], dim=1)
        wanted = factor * (2.0 * F.one_hot(LABELS, 3) - 1.0).double()
        solved = torch.linalg.lstsq(features, wanted).solution.T
        model[2].weight.copy_(solved[:, :5])
        model[2].bias.copy_(solved[:, 5])
    return model.float()


def stable(loss, z, y):
    """The loss in float64 from sums of positive numbers alone."""
    if loss == "bce":
        return torch.log1p((-z * (2 * y - 1)).exp()).mean()
    gaps = (z - z.gather(1, y[:, None])).scatter(1, y[:, None], -torch.inf)
    return torch.log1p(gaps.exp().sum(dim=1)).mean()


def truth(loss, model, y):
    wide = copy.deepcopy(model).double()
    parameters = list(wide.parameters())
    value = stable(loss, wide(X.double()), y)
    signs = draw_signs(list(model.parameters()), torch.Generator().manual_seed(3))
    gradients = torch.autograd.grad(value, parameters, create_graph=True)
    products = torch.autograd.grad(
        gradients, parameters, [v.double() for v in signs], create_graph=True
    )
    trace = sum(product.square().sum() for product in products) / len(X)
    return value.detach(), trace.detach(), torch.autograd.grad(trace, parameters)


def assert_within(found, wanted, rtol=SINGLE):
    found = torch.cat([part.double().flatten() for part in found])
    wanted = torch.cat([part.flatten() for part in wanted])
    assert float((found - wanted).norm()) <= rtol * float(wanted.norm())


@pytest.mark.parametrize("shared", [False, True], ids=["own forward", "shared forward"])
@pytest.mark.parametrize(
    ("loss", "factor"), [(loss, factor) for loss, factors in FACTORS.items() for factor in factors]
)
def test_trace_squared_and_its_gradient(loss, factor, shared):
    model = network(factor)
    y = F.one_hot(LABELS, 3).float() if loss == "bce" else LABELS
    value, trace, slopes = truth(loss, model, y.double() if loss == "bce" else y)
    penalty = FlatnessPenalty(
        model, weight=1.0, loss=loss, generator=torch.Generator().manual_seed(3)
    )
    if shared:
        with penalty.shared_forward():
            given = CLASSES[loss]()(model(X), y)
        assert_within([given], [value])
        found = penalty(X, y, loss=given)
    else:
        found = penalty(X, y)
    assert_within([found], [trace])
    assert_within(torch.autograd.grad(found, list(model.parameters())), slopes)


CALLS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smooth": {"label_smoothing": 0.1},
    "weighted": {"weight": torch.tensor([1.0, 2.0, 0.5]), "ignore_index": 2},
    "outdated": {"size_average": False},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (3,)], ids=str)
@pytest.mark.filterwarnings("ignore:size_average")
def test_cross_entropy_is_called_as_in_torch(name, shape):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(shape, generator=generator)
    y = torch.randint(3, shape[:1] + shape[2:] if len(shape) > 1 else (), generator=generator)
    targets = [y]
    if name != "weighted" and len(shape) > 1:
        targets.append(torch.randn(shape, generator=generator).softmax(dim=1))
    for target in targets:
        with thrice_differentiable():
            found = F.cross_entropy(z, target, **CALLS[name])
        torch.testing.assert_close(found, F.cross_entropy(z, target, **CALLS[name]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_sigmoid_cross_entropy_is_called_as_in_torch(reduction):
    z, y = torch.randn(4, 3), torch.rand(4, 3)
    weights = {"weight": torch.rand(4, 1), "pos_weight": torch.rand(3), "reduction": reduction}
    with thrice_differentiable():
        found = F.binary_cross_entropy_with_logits(z, y, **weights)
    torch.testing.assert_close(found, F.binary_cross_entropy_with_logits(z, y, **weights))


def test_what_torch_refuses_is_refused():
    with thrice_differentiable():
        with pytest.raises(IndexError, match="out of bounds"):
            F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 3]))
        with pytest.raises((ValueError, RuntimeError)):
            F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 1, 2]))
        with pytest.raises(ValueError, match="size"):
            F.binary_cross_entropy_with_logits(torch.randn(2, 3), torch.rand(2))
    with pytest.raises(SpiritlevelError, match="Labels must lie in"):
        FlatnessPenalty(network(1.0))(X, LABELS + 1)


def test_under_autocast_it_is_computed_in_single_precision():
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        with thrice_differentiable():
            found = F.cross_entropy(z, LABELS, label_smoothing=0.1)
        wanted = F.cross_entropy(z, LABELS, label_smoothing=0.1)
    assert found.dtype == wanted.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
