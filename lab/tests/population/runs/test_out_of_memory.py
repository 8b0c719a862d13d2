"""Memory that runs out is reported as that, unless another method says so and needs less."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from population.tiny_study import tiny
from spiritlevel.symmetries.precision import precise
from spiritlevel_lab.population import checks
from spiritlevel_lab.population.runs.run_data import RunData

DATA = (torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0]))


def no_room(*_):
    return torch.empty(2**46)  # of the system: torch raises a plain RuntimeError


def no_room_on_gpu(*_):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


ERRORS = {no_room: RuntimeError, no_room_on_gpu: torch.cuda.OutOfMemoryError}


@pytest.fixture(params=list(ERRORS), ids=lambda fail: fail.__name__)
def fail(request):
    return request.param


def network_with(function) -> nn.Module:
    class Middle(nn.Module):
        def forward(self, x):
            return function.apply(x)

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), Middle(), nn.Linear(3, 2))


def full(fail, *, always: bool):
    """tanh whose backward finds no memory: always, or where a graph of it is wanted."""

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        def backward(ctx, grad):
            if always or torch.is_grad_enabled():
                fail()
            [x] = ctx.saved_tensors
            return grad * (1 - x.tanh() ** 2)

    return Full


def roomy():
    """The same function with memory for everything."""
    return full(lambda: None, always=False)


@pytest.mark.parametrize("measure", ["curvature.lambda_max", "curvature.trace"])
def test_in_the_second_derivative(fail, measure):
    """Differences of gradients, which need less, take its place, and the value says so."""
    found = sl.measure(network_with(full(fail, always=False)), DATA, measures=measure)[measure]
    truth = sl.measure(network_with(roomy()), DATA, measures=measure)[measure]
    assert "products by differences of gradients" in str(found)
    assert found.value == pytest.approx(truth.value, rel=1e-4)


@pytest.mark.parametrize("measure", ["curvature.lambda_max", "curvature.trace"])
def test_in_the_second_derivative_that_is_asked_for(fail, measure):
    model = network_with(full(fail, always=False))
    with pytest.raises(ERRORS[fail], match="memory"):
        sl.measure(model, DATA, measures=measure, products="reverse")


@pytest.mark.parametrize("measure", ["curvature.lambda_max", "curvature.trace"])
def test_in_the_gradient(fail, measure):
    """There is no method that needs less."""
    with pytest.raises(ERRORS[fail], match="memory"):
        sl.measure(network_with(full(fail, always=True)), DATA, measures=measure)


def test_in_float64(fail):
    class Full(nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                fail()
            return x

    model = nn.Sequential(nn.Linear(4, 3), Full())
    x = torch.randn(2, 4)
    with pytest.raises(ERRORS[fail], match="memory"):
        precise(model, lambda net: net(x.to(net[0].weight.dtype)))


def test_in_the_network_of_a_study(fail):
    class Full(nn.Module):
        def forward(self, x):
            fail()

    run = tiny().runs()[0]
    x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
    with pytest.raises(sl.SpiritlevelError, match="needs more memory than there is"):
        checks._check_fit(run, Full(), RunData(x, y, x, y, 10))
