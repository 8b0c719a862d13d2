"""Penalties read a loss as measures do: the user's own, or refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import resolve
from spiritlevel.training import FlatnessPenalty, HeadPenalty, KappaPenalty, trace_squared_penalty
from spiritlevel.training.penalties.penalty_batch import mean_loss
from zoo.torch_losses import WEIGHTS
from zoo.user_losses import LABELS, USER_LOSSES, Cooled, Focal

N, C = len(LABELS), 3


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, C)).double()


@pytest.fixture
def x():
    return torch.randn(N, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("name", ["focal", "cooled, weights", "sum of two", "lambda of a mean"])
def test_the_mean_loss_and_its_gradient_are_the_users(name, x, model):
    given, targets = USER_LOSSES[name]
    outputs = model(x)
    loss = mean_loss(resolve(given), outputs, targets)
    given = given.double() if isinstance(given, nn.Module) else given
    expected = given(outputs, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(each, outputs, retain_graph=True) for each in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (Cooled(), lambda z, y: F.cross_entropy(z / 2.5, y, reduction="none")),
        (Focal(), lambda z, y: focal(F.cross_entropy(z, y, reduction="none"))),
    ],
)
def test_higher_derivatives_of_a_subclass_are_its_own(given, same, x, model):
    # The same random signs for the subclass and for a function that says the same.
    values, gradients = [], []
    for loss in (given, same, nn.CrossEntropyLoss()):
        generator = torch.Generator().manual_seed(7)
        value = trace_squared_penalty(model, x, LABELS, loss=loss, generator=generator)
        gradients.append(torch.autograd.grad(value, model[0].weight)[0])
        values.append(float(value.detach()))
    assert values[0] == pytest.approx(values[1], rel=1e-10)
    assert values[0] != pytest.approx(values[2], rel=1e-2)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-12)


def focal(entropy):
    return (1 - (-entropy).exp()).square() * entropy


@pytest.mark.parametrize("penalty", [KappaPenalty, HeadPenalty])
def test_penalties_in_closed_form_refuse_a_subclass(penalty, x, model):
    options = {"layer": "0"} if penalty is KappaPenalty else {}
    term = penalty(model, weight=1.0, loss=Focal(), **options)
    with pytest.raises(sl.SpiritlevelError, match=r"of this penalty must be .* Got 'Focal'"):
        term(x, LABELS)


def test_a_penalty_refuses_a_loss_that_holds_weights_of_the_model(model):
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model[2]

        def forward(self, outputs, targets):
            return F.cross_entropy(outputs, targets) + self.layer.weight.square().sum()

    with pytest.raises(sl.SpiritlevelError, match="is a trained weight of the model"):
        FlatnessPenalty(model, 1.0, loss=Holding())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_mean_over_more_elements_than_half_precision_can_count(dtype):
    outputs = torch.ones(70_000, 1, dtype=dtype, requires_grad=True)
    loss = mean_loss(resolve("mse"), outputs, torch.zeros(70_000, 1, dtype=dtype))
    assert float(loss.detach()) == pytest.approx(1.0, rel=1e-6)
    outputs = torch.zeros(1001, C, dtype=dtype, requires_grad=True)
    weighted = resolve(nn.CrossEntropyLoss(weight=WEIGHTS))
    loss = mean_loss(weighted, outputs, torch.zeros(1001, dtype=torch.long))
    assert float(loss.detach()) == pytest.approx(float(torch.tensor(3.0).log()), rel=1e-6)
