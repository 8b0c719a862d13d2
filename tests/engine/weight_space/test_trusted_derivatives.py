"""Second derivatives that torch gets wrong, or that a model gives only in its own way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import spiritlevel as sl
from spiritlevel.engine.weight_space import trusted_derivatives
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request
from spiritlevel.model.batches import BatchLocation
from spiritlevel.model.surface import Surface
from spiritlevel.testing import references
from zoo.wrong_gradients import Scaled

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


class NearAKink(nn.Module):
    """A unit that a tiny step of its weight switches off, and one that has no kink."""

    def __init__(self, distance, wrong):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
        self.distance, self.wrong = distance, wrong

    def forward(self, x):
        weight = Scaled.apply(self.weight) if self.wrong else self.weight
        kinked = torch.relu(weight[0] - 1.0 + self.distance)
        return x * (kinked + 0.5 * weight[1])


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("distance", [1e-9, 1e-10, 1.0])
def test_a_kink_within_the_step_is_not_a_wrong_gradient(distance, wrong):
    x = torch.ones(2, 1, dtype=torch.float64)
    surface = Surface(NearAKink(distance, wrong), (x, 2 * x), loss="mse")

    def refused(seed):
        try:
            trusted_derivatives.check_gradient(
                surface, surface.first_samples(2), BatchLocation(0), seed
            )
        except sl.SpiritlevelError as error:
            assert "not that of the loss" in str(error)  # noqa: PT017
            return True
        return False

    with surface.preserved():
        assert [refused(seed) for seed in range(20)] == [wrong] * 20


@pytest.mark.nightly
def test_a_confident_network_is_not_refused():
    """Its slopes nearly cancel, so that single units decide them."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            shape = {"kernel_size": 3, "padding": 1, "bias": False}
            self.first, self.second = (nn.Conv2d(width, width, **shape) for _ in range(2))
            self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

        def forward(self, x):
            inner = self.norms[0](self.first(x)).relu()
            return (x + self.norms[1](self.second(inner))).relu()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        x, y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
        stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
        model = nn.Sequential(*stem, *[Block(16) for _ in range(3)], *tail)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(120):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    assert float(loss.detach()) < 0.05
    surface = Surface(model.eval(), (x, y))
    with surface.preserved():
        for seed in range(100):
            first = seed % 61
            batch = x[first : first + 4], y[first : first + 4]

            def look(batch=batch, seed=seed):
                trusted_derivatives.check_gradient(surface, batch, BatchLocation(0), seed)

            trusted_derivatives.beside_the_parameters(surface, seed, look)


class Adjoint(torch.autograd.Function):
    """A module's output, whose backward runs the module again, as adjoint methods do."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_(), *parameters]
            out = ctx.module(inputs[0])
            found = torch.autograd.grad(out, inputs, gradient.detach(), allow_unused=True)
        found = [
            g if g is not None else torch.zeros_like(p) for g, p in zip(found, inputs, strict=True)
        ]
        return None, *found


class RunAgain(nn.Module):
    """A part that runs again in the backward; `single` adds a number in float32."""

    def __init__(self, single):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.head, self.single = nn.Linear(3, 3), single

    def forward(self, x):
        if self.single:
            x = x * torch.ones(1)  # as a list of times may be
        return self.head(Adjoint.apply(self.part, x, *self.part.parameters()))


@pytest.mark.parametrize("single", [False, True])
def test_a_part_that_runs_again_in_the_backward(single, generator):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = RunAgain(single).double()
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    data = x, torch.arange(5) % 3
    plain = nn.Sequential(*model.part, model.head)
    truth = references.Truth(plain, [data], F.cross_entropy)
    names = list(truth.parameters)
    found = sl.measure(model, data, measures="curvature.ggn_trace", method="exact")
    expected = float(truth.ggn(names).trace())
    assert found["curvature.ggn_trace"].value == pytest.approx(expected, rel=1e-9)
    H = sl.operator(model, data)
    v = torch.randn(H.shape[0], generator=generator, dtype=torch.float64)
    # 1e-6: differences of gradients, since the second derivative of such a part is not there
    assert torch.allclose(H @ v, truth.hessian(names) @ v, rtol=1e-6, atol=1e-7)


def test_a_first_call_spends_little_beside_its_products(generator):
    """Counted in samples: what looks at derivatives does not grow with the data."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()
    x = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    data = x, torch.arange(8) % CLASSES
    first, later = (sl.eigenvalues(model, data).cost for _ in range(2))
    # 8 of each are the graph that all products share
    assert (first.forwards, first.backwards) == (8 + 33, 8 + 13)
    assert (later.forwards, later.backwards) == (8 + 4, 8)
    # what is known does not depend on the verb that found it out
    again = sl.measure(model, data, measures="curvature.lambda_max").cost
    assert again.backwards == 8
