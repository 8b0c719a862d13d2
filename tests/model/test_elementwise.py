"""Which tensors elementwise functions bend, and how much, against torch on the same numbers."""

import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.model.elementwise import bend_of, elementwise_bends
from zoo import plain

FUNCTIONS = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": lambda x: F.softplus(x, beta=2.0),
    "elu": F.elu,
    "elu in place": lambda x: F.elu_(x + 0.0),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.6),
    "mish": F.mish,
    "log sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "hardswish": F.hardswish,
    "tanhshrink": F.tanhshrink,
    "exp": torch.exp,
    "log": lambda x: torch.log(x * x + 0.5),
    "power": lambda x: x**3,
    "power of itself": lambda x: (x.abs() + 0.1) ** x,
    "square": lambda x: x * x,
    "root": lambda x: (1 + x.square()).sqrt(),
    "inverse root": lambda x: torch.rsqrt(1 + x.square()),
    "reciprocal": lambda x: (2 + x.tanh()).reciprocal(),
    "sine": lambda x: torch.sin(3 * x) + torch.cos(x),
    "arc tangent": torch.atan,
    "error function": torch.erf,
    "snake": lambda x: x + torch.sin(x).square(),
    "two after another": lambda x: torch.tanh(torch.sin(x) * 2),
    "used twice": lambda x: torch.tanh(x) * torch.tanh(x) + F.silu(x),
    "by hand": lambda x: x * torch.sigmoid(1.7 * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_derivative_is_that_of_torch(name):
    function, weight = FUNCTIONS[name], plain.random(3, 4, seed=1).requires_grad_()
    y = plain.random(5, 3) @ weight
    signal = plain.random(5, 4, seed=2)
    outputs = function(y)
    found = elementwise_bends(outputs, {id(weight): "weight"})
    assert found.bends.keys() == {"weight"}
    assert found.others == {}
    (site,) = found.sites
    pulled = torch.autograd.grad(
        outputs,
        [torch.autograd.graph.GradientEdge(node, 0) for node in site.nodes],
        signal,
        retain_graph=True,
    )
    values = bend_of(site, dict(zip(site.nodes, pulled, strict=True))).curvature

    start = y.detach().requires_grad_()
    (first,) = torch.autograd.grad((function(start) * signal).sum(), start, create_graph=True)
    (expected,) = torch.autograd.grad(first.sum(), start)
    assert values == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_that_of_tanh_is_its_closed_form():
    weight = plain.random(2, 2).requires_grad_()
    t = torch.tanh(plain.random(3, 2, seed=1) @ weight)
    (site,) = elementwise_bends(t, {id(weight): "w"}).sites
    (node,) = site.nodes
    values = bend_of(site, {node: torch.full_like(t, 3.0).detach()}).curvature
    assert values == pytest.approx((-6 * t * (1 - t**2)).detach(), rel=1e-12)


# -- digits where functions saturate ---------------------------------------------------------------


def by_tanh(x, tanh):
    return x / 2 * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def logistic(x):
    return 1 / (1 + mpmath.exp(-x))


def softplus(x):
    return mpmath.log1p(mpmath.exp(x)) if x <= 20 else x  # as torch has it


SATURATED = {  # with what mpmath says of them, and whether torch keeps the input
    "tanh": (torch.tanh, mpmath.tanh, False),
    "tanh in place": (lambda x: torch.tanh_(x * 2.0), lambda x: mpmath.tanh(2 * x), False),
    "a quotient": (
        lambda x: torch.tanh(x) / (1 + x**2),
        lambda x: mpmath.tanh(x) / (1 + x**2),
        False,
    ),
    "sigmoid": (torch.sigmoid, logistic, False),
    "silu": (F.silu, lambda x: x * logistic(x), True),
    "silu by hand": (lambda x: x * torch.sigmoid(x), lambda x: x * logistic(x), False),
    "gelu": (F.gelu, lambda x: x * mpmath.ncdf(x), True),
    "gelu by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: by_tanh(x, mpmath.tanh),
        True,
    ),
    "gelu by hand": (lambda x: by_tanh(x, torch.tanh), lambda x: by_tanh(x, mpmath.tanh), False),
    "softplus": (F.softplus, softplus, True),
    "log sigmoid": (F.logsigmoid, lambda x: -mpmath.log1p(mpmath.exp(-x)), True),
    "mish": (F.mish, lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))), True),
    "elu": (F.elu, lambda x: x if x > 0 else mpmath.expm1(x), True),
    "softsign": (F.softsign, lambda x: x / (1 + abs(x)), True),
    "hardswish": (F.hardswish, lambda x: x * min(max(x + 3, 0), 6) / 6, True),
    "square": (lambda x: x * x, lambda x: x * x, True),
}
INPUTS = [-60, -30, -16, -8, -5, -2, -0.5, 0.5, 2, 5, 8, 16, 19, 30, 60]


@pytest.mark.parametrize("name", SATURATED)
def test_saturated_functions_keep_their_digits_or_say_what_is_lost(name):
    function, exact, kept = SATURATED[name]
    with mpmath.workdps(60):
        truths = [
            [mpmath.diff(exact, mpmath.mpf(x), n, h=mpmath.mpf("1e-20")) for x in INPUTS]
            for n in (1, 2)
        ]
    for dtype in (torch.float32, torch.float64):
        weight = torch.ones(1, 1, dtype=dtype, requires_grad=True)
        outputs = function(torch.tensor(INPUTS, dtype=dtype)[:, None] @ weight)
        (site,) = elementwise_bends(outputs, {id(weight): "weight"}).sites
        edges = [torch.autograd.graph.GradientEdge(node, 0) for node in site.nodes]
        ones = torch.ones_like(outputs)
        *signals, slope = torch.autograd.grad(outputs, [*edges, site.edge], ones, retain_graph=True)
        bend = bend_of(site, dict(zip(site.nodes, signals, strict=True)))
        found = [(slope, bend.lost_slope), (bend.curvature, bend.lost)]
        for truth, (values, lost) in zip(truths, found, strict=True):
            expected = torch.tensor([float(each) for each in truth], dtype=torch.float64)[:, None]
            allowed = 100 * torch.finfo(dtype).eps * expected.abs() + 1e-35
            assert (values.double() - expected).abs().le(allowed + lost).all(), (name, dtype)
        assert bool(bend.lost.any()) is not kept
        middle = [i for i, x in enumerate(INPUTS) if abs(x) <= 2]
        assert bend.lost[middle].max() < 100 * torch.finfo(dtype).eps  # and no more is said


OTHERS = {
    "a softmax": lambda h, _: h.softmax(dim=1),
    "a norm": lambda h, _: F.layer_norm(h, (4,)),
    "a product of two linear maps": lambda h, other: h * (h @ other),
    "a product with a mean": lambda h, _: h * h.mean(dim=1, keepdim=True),
    "a product with another position": lambda h, _: h * h.roll(1, 1),
    "a product of activations": lambda h, other: torch.tanh(h) * torch.tanh(h @ other),
    "attention": lambda h, _: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None]),
    "a matrix product": lambda h, _: h.T @ h,
    "gates of halves": lambda h, _: F.glu(h),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_mixes_elements_is_told_apart(name):
    weight = plain.random(3, 4).requires_grad_()
    h = plain.random(4, 3, seed=1) @ weight
    found = elementwise_bends(OTHERS[name](h, plain.random(4, 4, seed=2)), {id(weight): "weight"})
    assert found.others.keys() == {"weight"}
    assert found.bends.keys() == {"weight"}


def test_a_trained_slope_is_no_constant():
    # tanh(s·h) bends along s as well as along the weight: h is not the site
    weight, slope = plain.random(3, 4).requires_grad_(), plain.random(4, seed=1).requires_grad_()
    outputs = torch.tanh(slope * (plain.random(5, 3, seed=2) @ weight))
    found = elementwise_bends(outputs, {id(weight): "weight", id(slope): "slope"})
    (site,) = found.sites
    assert site.behind == 0b11
    assert site.edge.node.name() == "MulBackward0"
    assert found.others == {}


def test_only_what_is_before_a_site_is_behind_it():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2))
    names = {id(p): name for name, p in model.named_parameters()}
    found = elementwise_bends(model(torch.randn(2, 3)), names)
    assert [site.behind for site in found.sites] == [0b000011, 0b001111]
    assert [tuple(site.shape) for site in found.sites] == [(2, 4), (2, 5)]
    assert set(found.bends) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_weight_that_is_bent_itself_has_a_site_too():
    # its elements are of no sample, which the sweep finds out
    raw = plain.random(3, 4).requires_grad_()
    (site,) = elementwise_bends(plain.random(5, 3) @ F.softplus(raw), {id(raw): "raw"}).sites
    assert site.edge.node.variable is raw


def test_complex_numbers_are_left_alone():
    weight = plain.random(3, 4).requires_grad_()
    z = torch.view_as_complex((plain.random(2, 3) @ weight).reshape(2, 2, 2))
    found = elementwise_bends(torch.view_as_real(z * z), {id(weight): "weight"})
    assert found.others.keys() == {"weight"}
