"""Memory that runs out is reported as that, and no other method is tried in its place."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.study import checks
from spiritlevel.study.runs.run_data import RunData
from spiritlevel.symmetries.precision import precise
from study.tiny_study import tiny

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


@pytest.mark.parametrize("measure", ["curvature.lambda_max", "curvature.trace"])
def test_in_the_second_derivative(fail, measure):
    """Where a second backward fails for another reason, differences of gradients take its place."""

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        def backward(ctx, grad):
            if torch.is_grad_enabled():  # a graph of it is wanted
                fail()
            [x] = ctx.saved_tensors
            return grad * (1 - x.tanh() ** 2)

    with pytest.raises(ERRORS[fail], match="memory"):
        sl.measure(network_with(Full), DATA, measures=measure)


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
