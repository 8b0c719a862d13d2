"""Products by differences of gradients: their stated errors, against dense float64 Hessians."""

import contextlib
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.weight_space import trusted_derivatives
from spiritlevel.engine.weight_space.differences import Differences, length_of
from spiritlevel.engine.weight_space.parameter_space import ParameterSpace
from spiritlevel.engine.weight_space.products import Products, Request, errors_of
from spiritlevel.model.surface import Surface
from spiritlevel.testing import references
from zoo.once_differentiable import OnceTanh
from zoo.plain import classes, random
from zoo.wirings import Encoder

CLASSES = 3
TYPES = [torch.float64, torch.float32]


class Sine(nn.Module):
    """Third derivatives are large: it bends within a small part of what a tanh needs."""

    times = 30

    def forward(self, x):
        return (self.times * x).sin()


def mlp(activation, width=8):
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, CLASSES))


def confident():
    net = mlp(nn.Tanh)
    net[2].weight.data *= 60
    return net


NETWORKS = {
    "tanh": lambda: mlp(nn.Tanh),
    "sine": lambda: mlp(Sine, width=6),
    "relu": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *mlp_after()),
    "confident": confident,
    "transformer": lambda: Encoder(batch_first=True, norm_first=True),
}


def mlp_after():
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def problem(name, dtype=torch.float64):
    """A network whose weights are numbers of a type, its data, and its Hessian in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = NETWORKS[name]().to(dtype).eval()
    x = random(*((6, 3, 4) if name == "transformer" else (30, 4))).to(dtype)
    y = classes(len(x), CLASSES)
    wide = copy.deepcopy(model).double()
    truth = references.Truth(wide, [(x.double(), y)], F.cross_entropy)
    return model, (x, y), truth.hessian(list(truth.parameters))


@pytest.fixture
def own_precision(monkeypatch):
    """Differences in the model's own type, as in a model that is too large for float64."""
    monkeypatch.setattr(trusted_derivatives, "is_widened", lambda surface: False)


def directions(H):
    """Random ones, eigenvectors, and some near the leading ones, by kind."""
    _, V = torch.linalg.eigh(H)
    noise = random(20, len(H), seed=3)
    near = V.T[-1 - torch.arange(8) % 3] + 1e-3 * noise[:8] / math.sqrt(len(H))
    some = V.T[:: max(1, len(H) // 20)]  # those of all sizes, of 0 too
    return {"random": noise, "eigenvectors": some, "near": near, "signs": noise[:8].sign()}


@pytest.mark.usefixtures("own_precision")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NETWORKS),
        ("sine", torch.float64),
        *(
            pytest.param(name, torch.float64, marks=pytest.mark.nightly)
            for name in NETWORKS
            if name != "sine"
        ),
    ],
)
def test_the_error_is_within_the_stated_one(name, dtype):
    model, data, H = problem(name, dtype)
    surface = Surface(model, data)
    space = ParameterSpace(surface)
    products = Products(surface, chunk=100, method="difference")
    # the truth's own rounding: eigenvectors and their products, in float64
    floor = 1e-14 * float(H.norm())
    for kind, rows in directions(H).items():
        rows = rows.to(dtype)
        with surface.preserved():
            (images,) = products.images([Request("hessian", space, rows)])
        truth = rows.double() @ H
        off, length = images.rows.double() - truth, rows.double().norm(dim=1)
        within = off.norm(dim=1) <= errors_of(images) + floor * length
        assert float(within.double().mean()) >= 0.95, kind
        forms = (off * rows).sum(dim=1).abs()
        said = (images.gaps * rows).sum(dim=1).abs() + 2 * images.rounding * length / len(H) ** 0.5
        within = forms <= said + floor * length.square()
        assert float(within.double().mean()) >= 0.95, kind
        if kind != "eigenvectors":  # whose products may be 0
            # the step is right: half of the digits, where a product does not cancel
            relative = errors_of(images) / truth.norm(dim=1)
            assert float(relative.median()) < 10 * math.sqrt(torch.finfo(dtype).eps), kind


def test_each_direction_has_a_step_of_its_own(monkeypatch):
    """Along the leading eigenvector the first step is off by far more than asked for."""
    monkeypatch.setattr(Sine, "times", 300)
    model, (x, y), H = problem("sine", torch.float32)
    top = torch.linalg.eigh(H)[1][:, -1].float()
    names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    pieces = top.split([shape.numel() for shape in shapes])
    along = {n: v.view(s) for n, v, s in zip(names, pieces, shapes, strict=True)}
    calls = []

    def gradient(at):
        calls.append(at)
        leaves = {name: p.detach().requires_grad_() for name, p in at.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, x).double(), y)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    start = {name: p.detach() for name, p in model.named_parameters()}
    step = 1e-3 * length_of(start)  # of 1e-3 of the weights, which serves random directions
    ends = [gradient({n: p + s * along[n] for n, p in start.items()}) for s in (step, -step)]
    fixed = torch.cat([(ends[0][n] - ends[1][n]).flatten() for n in names]).double() / (2 * step)
    calls.clear()
    found = Differences().along(gradient, start, along)
    value = torch.cat([part.flatten() for part in found.value.values()]).double()
    truth = H @ top.double()
    assert float((fixed - truth).norm() / truth.norm()) > 0.02
    assert float((value - truth).norm() / truth.norm()) < 1e-3
    assert float((value - truth).norm()) <= length_of(found.gap) + found.rounding
    moved = [length_of({n: p - start[n] for n, p in at.items()}) for at in calls[2:]]
    assert min(moved) < max(moved) / 4  # the first two steps did not agree
    assert moved[0] == pytest.approx(moved[1])  # ahead and behind


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-7, 0.0])
def test_a_kink_within_the_step_is_seen(distance):
    """f' jumps at some distance: shorter steps leave it out, or the error says what it does."""

    def derivative(at):
        w = at["w"]
        return {"w": w.sin() + (w > 1.0 + distance).to(w.dtype)}

    start = {"w": torch.ones(3, dtype=torch.float64)}
    along = {"w": torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)}
    found = Differences().along(derivative, start, along)
    off = found.value["w"] - start["w"].cos() * along["w"]
    assert float(off.norm()) <= length_of(found.gap) + found.rounding
    assert distance == 0.0 or float(off.norm()) < 1e-6


# -- what they serve ------------------------------------------------------------------------------


class Greedy(torch.autograd.Function):
    """tanh by way of a backward whose own backward finds no memory."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gradient * (1 - y * y)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


def refusing(function=OnceTanh):
    """A network without a second derivative, its data, and the Hessian of its twin."""
    plain, data, H = problem("tanh")
    return nn.Sequential(plain[0], Apply(function), plain[2]).eval(), data, H


def test_a_model_without_a_second_derivative_is_measured_and_says_so():
    model, data, H = refusing()
    values, _ = torch.linalg.eigh(H)
    pairs = sl.eigenvalues(model, data, num=2, residual_rtol=1e-6)
    assert pairs.values == pytest.approx(values.flip(0)[:2].tolist(), rel=1e-8)
    assert pairs.converged == [True, True]
    assert "differences of gradients, each off by at most" in pairs.settings["products_by"]
    assert "differences of gradients" in str(pairs)
    operator = sl.operator(model, data)
    v = random(len(H), 2)
    off = (operator @ v - H @ v).norm(dim=0)
    assert operator.errors is not None
    assert bool((off <= torch.tensor(operator.errors)).all())
    assert max(operator.errors) < 1e-6 * float((H @ v).norm())
    density = sl.density(model, data, num_vectors=2, steps=4)
    assert "differences of gradients" in density.text
    assert "differences of gradients" in str(type(density).from_dict(density.to_dict()))


@pytest.mark.parametrize("method", [pytest.param("auto", marks=pytest.mark.nightly), "hutchinson"])
def test_traces_and_kappa_by_weight_probes(method):
    """The probes are the same as those of a second backward, so the values are too."""
    model, data, _ = refusing()
    plain, _, _ = problem("tanh")
    names, how = ["curvature.trace", "relative.kappa"], {"method": method, "max_passes": 6}
    found = sl.measure(model, data, measures=names, **how)
    truth = sl.measure(plain, data, measures=names, **how)
    for name in names:
        assert "products by differences of gradients" in found[name].text
        assert "differences" not in truth[name].text
        assert not found[name].exact
        assert found[name].value == pytest.approx(truth[name].value, rel=1e-6)


def test_a_product_in_every_direction_is_not_exact():
    """In a tiny network all directions are taken: what is left is the error of the products."""
    model, data, _ = refusing()
    wide = {"max_passes": 200, "layers": "2"}
    found = sl.measure(model, data, measures="curvature.trace", method="hutchinson", **wide)
    whole = found["curvature.trace"]
    assert not whole.exact
    assert whole.stderr is not None


@pytest.mark.parametrize("wanted", ["reverse", "forward", "difference"])
def test_the_user_chooses(wanted):
    model, data, H = problem("tanh")
    pairs = sl.eigenvalues(model, data, products=wanted, residual_rtol=1e-6)
    assert pairs.values == pytest.approx([float(torch.linalg.eigvalsh(H)[-1])], rel=1e-7)
    assert ("products_by" in pairs.settings) == (wanted == "difference")


def test_a_choice_that_the_model_does_not_support_is_refused():
    model, data, _ = refusing()
    with pytest.raises(sl.SpiritlevelError, match="Tried reverse: "):
        sl.eigenvalues(model, data, products="reverse")
    with pytest.raises(sl.SpiritlevelError, match=r"'products'.*must be one of auto, reverse"):
        sl.eigenvalues(model, data, products="double")


def test_without_memory_for_a_second_backward_there_are_differences():
    model, data, H = refusing(Greedy)
    pairs = sl.eigenvalues(model, data, residual_rtol=1e-6)
    assert "differences" in pairs.settings["products_by"]
    assert pairs.values == pytest.approx([float(torch.linalg.eigvalsh(H)[-1])], rel=1e-7)


def test_half_precision_weights_are_measured_in_a_wider_type():
    """bfloat16 itself has no step: its weights are computed with in float32, then in float64."""
    model, (x, y), _ = problem("tanh")
    half, x = copy.deepcopy(model).bfloat16(), x.bfloat16()
    truth = references.Truth(copy.deepcopy(half).double(), [(x.double(), y)], F.cross_entropy)
    H = truth.hessian(list(truth.parameters))
    pairs = sl.eigenvalues(half, (x, y), products="difference")
    off = abs(pairs.values[0] - float(torch.linalg.eigvalsh(H)[-1]))
    assert off <= pairs.residuals[0]
    assert pairs.residuals[0] < 1e-3 * pairs.values[0]


# -- the model afterwards -------------------------------------------------------------------------


class Failing(nn.Module):
    """Raises in one of its calls; another exception of Ctrl-C's kind."""

    def __init__(self, inner, at, error):
        super().__init__()
        self.inner, self.left, self.error = inner, at, error

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.inner(x)


@pytest.mark.parametrize("error", [None, ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_put_back_bit_for_bit(dtype, error):
    inner, data, _ = problem("tanh", dtype)
    model = Failing(inner, 0 if error is None else 9, error)
    surface = Surface(model, data)
    space = ParameterSpace(surface)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    kinds = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    products = Products(surface, chunk=100, method="difference")
    rows = random(2, space.size).to(dtype)
    outcome = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with outcome, surface.preserved():
        products.multiply([Request("hessian", space, rows)])
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert (id(p), p.data_ptr()) == kinds[name]
        assert p.grad is None
