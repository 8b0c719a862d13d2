"""Weights that a network reads as complex numbers: products against dense float64 Hessians."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError


class Filter(nn.Module):
    """A global filter as in GFNet: real numbers in pairs, read as complex ones."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Parameter(torch.randn(4, 2) * 0.5)

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.pairs), n=6)


class FlatFilter(Filter):
    """The same out of the middle of one flat vector."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Parameter(torch.randn(9) * 0.5)

    def forward(self, x):
        pairs = torch.view_as_complex(self.pairs[:8].view(4, 2))
        return torch.fft.irfft(torch.fft.rfft(x) * pairs, n=6) * self.pairs[8]


class ComplexFilter(nn.Module):
    """The same with a complex parameter."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.w, n=6)


def problem(filters):
    """Three numbers in front, so that the pairs begin at an odd place of a flat vector."""
    torch.manual_seed(0)
    front = nn.Linear(6, 6, bias=False)
    nn.utils.parametrize.register_parametrization(front, "weight", Scaled())
    model = nn.Sequential(front, filters(), nn.Tanh(), nn.Linear(6, 3)).eval()
    return model, torch.randn(8, 6), torch.randint(3, (8,))


class Scaled(nn.Module):
    """One more number beside a matrix."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.3))

    def forward(self, weight):
        return weight * self.scale


def dense(model, x, y):
    """By double backward of each entry: slices of one flat gradient would be at odd places too."""
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    rows = []
    for gradient in torch.autograd.grad(loss, parameters, create_graph=True):
        for entry in gradient.flatten():
            row = torch.autograd.grad(entry, parameters, retain_graph=True)
            rows.append(torch.cat([part.flatten() for part in row]))
    return torch.stack(rows)


@pytest.mark.parametrize("filters", [Filter, FlatFilter])
def test_products_and_eigenvalues_are_those_of_the_dense_hessian(filters):
    model, x, y = problem(filters)
    model, x = model.double(), x.double()
    H = dense(model, x, y)
    operator = sl.operator(model, (x, y))
    vectors = torch.randn(len(H), 3, dtype=torch.float64)
    torch.testing.assert_close(operator @ vectors, H @ vectors, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(operator @ vectors[:, 0], H @ vectors[:, 0], rtol=1e-9, atol=1e-11)
    largest = sl.eigenvalues(model, (x, y), rtol=1e-4).values[0]
    assert largest == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-4)  # its tolerance


def test_a_complex_parameter_is_refused_and_may_be_frozen():
    model, x, y = problem(ComplexFilter)
    with pytest.raises(SpiritlevelError, match=r"'1\.w' is torch\.complex64.*view_as_real"):
        sl.measure(model, (x, y), measures="curvature.trace")
    model[1].w.requires_grad_(False)
    report = sl.measure(model, (x, y), measures="curvature.trace", layers="3")
    wide = nn.Sequential(nn.Linear(6, 3)).double()
    wide[0].load_state_dict(model[3].state_dict())
    with torch.no_grad():
        features = model[:3](x).double()
    truth = dense(wide, features, y).trace().item()
    assert report["curvature.trace"].value == pytest.approx(truth, rel=1e-5)  # features in float32


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_complex_outputs_are_refused(loss):
    class Model(nn.Linear):
        def forward(self, x):
            return torch.complex(super().forward(x), torch.ones(()))

    y = torch.randn(5, 3) if loss == "mse" else torch.randint(3, (5,))
    with pytest.raises(SpiritlevelError, match="outputs must be real"):
        sl.measure(Model(4, 3), (torch.randn(5, 4), y), loss=loss, measures="curvature.trace")


def test_frozen_numbers_of_another_kind_do_not_decide_the_type():
    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.randint(-3, 3, (6, 6), dtype=torch.int8), False)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.tanh(x @ self.q.to(x.dtype) * 0.2))

    torch.manual_seed(0)
    model, x, y = Quantized(), torch.randn(8, 6), torch.randint(3, (8,))
    wide = nn.Sequential(nn.Linear(6, 3)).double()
    wide[0].load_state_dict(model.head.state_dict())
    H = dense(wide, torch.tanh(x.double() @ model.q.double() * 0.2), y)
    largest = sl.eigenvalues(model, (x, y), rtol=1e-4).values[0]
    assert largest == pytest.approx(torch.linalg.eigvalsh(H)[-1].item(), rel=1e-4)
