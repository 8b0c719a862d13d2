"""Second derivatives that torch gets wrong, or that a model gives only in its own way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import spiritlevel as sl
from spiritlevel.engine.weight_space import trust
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.batches import BatchLocation
from spiritlevel.model.surface import Surface
from zoo import references

CLASSES = 3


def test_a_checkpoint_runs_again_with_the_weights_that_were_put_in(generator):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(checkpoint(lambda x: self.inner(x).tanh(), x, use_reentrant=False))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Checkpointed().double()
    x = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    data = x, torch.arange(5) % CLASSES
    surface = Surface(model, data)
    H = references.Truth(model, [data], F.cross_entropy).hessian(list(surface.parameters))
    space = ParameterSpace(surface)
    vectors = torch.randn(2, space.size, generator=generator, dtype=torch.float64)
    with surface.preserved():
        products = Products(surface, chunk=5, method="difference")
        (images,) = products.multiply([Request("hessian", space, vectors)])
    torch.testing.assert_close(images, vectors @ H, rtol=1e-6, atol=1e-8)


class Strided(nn.Module):
    """Batch norm after a reshape, which for one sample alone is a view with odd strides."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(2), nn.Linear(2, CLASSES)

    def forward(self, x):
        x = x.flatten(2).mT.contiguous().mT.reshape(x.shape)
        return self.head(self.norm(x).tanh().mean(dim=(2, 3)))


def slope(model, x, y, step=1e-5):
    """Of the loss along the first weight of the norm, from the loss itself."""
    weight, sides = model.norm.weight, []
    for change in (step, -step):
        before = weight.detach().clone()
        weight.data[0] += change
        sides.append(float(F.cross_entropy(model(x), y).detach()))
        weight.data.copy_(before)
    return (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("name", ["curvature.trace", "curvature.lambda_max"])
def test_a_gradient_that_is_wrong_for_one_sample_alone_is_refused(name, generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Strided().double().eval()
    x = torch.randn(1, 2, 4, 4, generator=generator, dtype=torch.float64)
    y = torch.tensor([1])
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), model.norm.weight)
    # if this fails, torch was repaired and there is nothing to refuse
    assert abs(float(gradient[0]) - slope(model, x, y)) > 0.01
    with pytest.raises(sl.SpiritlevelError, match="not that of the loss"):
        sl.measure(model, (x, y), measures=name)


def test_a_kink_within_the_step_is_no_wrong_gradient():
    """Refused only if another place shows the same; a wrong gradient is refused all the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, CLASSES)
        ).double()
    probe = Surface(model, (torch.ones(1, 2).double(), torch.zeros(1).long()))
    with trust._moved(probe, 0):
        first, second = model[0].weight.detach().clone()
    x = torch.stack([-first[1], first[0]])  # where the check looks, the first unit is at its kink
    x = x * (second @ x).sign()
    surface = Surface(model, (x.repeat(3, 1), torch.arange(3)))
    batch = surface.first_samples(3)

    def look():
        trust.check_gradient(surface, batch, BatchLocation(0))

    with pytest.raises(trust.WrongGradient):
        trust._beside(surface, 0, look)
    trust.beside_the_parameters(surface, 0, look)
    model[1].register_full_backward_hook(lambda module, inputs, out: (2 * inputs[0],))
    with pytest.raises(trust.WrongGradient):
        trust.beside_the_parameters(surface, 0, look)
