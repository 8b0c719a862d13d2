"""Closed forms of the head: dense Hessians, decimals at large margins, and their derivatives."""

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.math.curvature import DenseCurvature, DiagonalCurvature, SoftmaxCurvature
from spiritlevel.math.head import head_kappa, head_product, head_trace, head_trace_squared_pairs
from zoo import decimal_softmax as exact
from zoo.plain import random

N, C, D = 5, 3, 4


def kronecker(A, phi):
    """mean_n A_n ⊗ φ_n φ_n', rows of W one after the other."""
    return torch.stack(
        [torch.kron(a, torch.outer(x, x)) for a, x in zip(A, phi, strict=True)]
    ).mean(dim=0)


def dense_of(curvature):
    """A_n from products with unit vectors, checked on their own elsewhere."""
    eye = torch.eye(C, dtype=torch.float64)
    return torch.stack([curvature.apply(e.expand(N, C)) for e in eye], dim=2)


CURVATURES = {
    "softmax": lambda: SoftmaxCurvature(random(N, C, seed=1), random(N, seed=2).abs()),
    "diagonal": lambda: DiagonalCurvature(random(N, C, seed=1)),
    "dense": lambda: DenseCurvature(random(N, C, C, seed=1)),
}


@pytest.mark.parametrize("kind", CURVATURES)
def test_closed_forms_are_those_of_the_kronecker_product(kind):
    curvature = CURVATURES[kind]()
    phi, W, V = random(N, D, seed=3), random(C, D, seed=4), random(C, D, seed=5)
    H = kronecker(dense_of(curvature), phi)
    tight = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(head_trace(curvature, phi).mean(), H.trace(), **tight)
    blocks = H.reshape(C, D, C, D)
    traces = torch.stack(
        [torch.stack([blocks[i, :, j].trace() for j in range(C)]) for i in range(C)]
    )
    kappa = ((W @ W.T) * traces).sum()
    torch.testing.assert_close(head_kappa(curvature, phi, W).mean(), kappa, **tight)
    product = head_product(curvature, phi, torch.full((N,), 1 / N, dtype=torch.float64), V)
    torch.testing.assert_close(product.flatten(), H @ V.flatten(), **tight)
    square = head_trace_squared_pairs(curvature, phi, curvature, phi) / N**2
    torch.testing.assert_close(square, (H @ H).trace(), **tight)


def test_the_softmax_hessian_of_a_linear_head_is_that_kronecker_product():
    # The premise of the test above, by autograd.
    phi, W = random(N, D, seed=3), random(C, D, seed=4)
    y = torch.tensor([0, 1, 2, 0, 1])
    H = torch.func.hessian(lambda w: F.cross_entropy(phi @ w.view(C, D).T, y))(W.flatten())
    A = dense_of(SoftmaxCurvature(phi @ W.T))
    torch.testing.assert_close(H, kronecker(A, phi), rtol=1e-12, atol=1e-14)


# -- derivatives: penalties need them --------------------------------------------------------


def leaf(*shape, seed):
    return random(*shape, seed=seed).requires_grad_()


def test_head_trace_is_differentiable():
    def function(logits, mass, phi):
        return head_trace(SoftmaxCurvature(logits, mass), phi)

    inputs = leaf(N, C, seed=1), leaf(N, seed=2), leaf(N, D, seed=3)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_head_kappa_is_differentiable():
    def function(logits, phi, weight):
        return head_kappa(SoftmaxCurvature(logits), phi, weight)

    inputs = leaf(N, C, seed=1), leaf(N, D, seed=2), leaf(C, D, seed=3)
    assert torch.autograd.gradcheck(function, inputs)


def test_head_kappa_is_differentiable_through_the_logits_it_makes():
    def function(phi, weight):
        return head_kappa(SoftmaxCurvature(phi @ weight.T), phi, weight)

    assert torch.autograd.gradcheck(function, (leaf(N, D, seed=2), leaf(C, D, seed=3)))


def test_head_trace_squared_is_differentiable():
    def function(phi, weight):
        curvature = SoftmaxCurvature(phi @ weight.T)
        return head_trace_squared_pairs(curvature, phi, curvature, phi)

    assert torch.autograd.gradcheck(function, (leaf(N, D, seed=2), leaf(C, D, seed=3)))


def test_head_product_is_differentiable():
    ones = torch.ones(N, dtype=torch.float64)

    def function(logits, phi, direction):
        return head_product(SoftmaxCurvature(logits), phi, ones, direction)

    inputs = leaf(N, C, seed=1), leaf(N, D, seed=2), leaf(C, D, seed=3)
    assert torch.autograd.gradcheck(function, inputs)


# -- float32 with margins of 20 to 60 --------------------------------------------------------

MARGINS = [20, 30, 40, 50, 60]


def confident_network(margin, *, hidden):
    """A float32 network whose logits lead by about `margin`; every number is short in binary."""
    W2 = [[2.0, -1.0, 0.5], [-0.5, 1.5, -1.0], [0.25, -0.75, 1.25]]
    x = [[1.0, 0.5, 0.25], [0.5, 1.25, 0.0], [0.75, 0.125, 1.5], [1.5, 0.25, -0.5]]
    W1 = [[1.0, 0.25, -0.5], [-0.25, 1.0, 0.5], [0.5, -0.5, 1.0]]
    b1, b2 = [0.125, 0.25, -0.25], [0.5, -0.25, 0.0]
    scale = 1.0
    while smallest_margin(W1, b1, scaled(W2, scale), b2, x, hidden) < margin:
        scale *= 1.0625
    W2 = [[float(torch.tensor(w)) for w in row] for row in scaled(W2, scale)]
    layers = [torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3)]
    model = torch.nn.Sequential(*layers) if hidden else layers[2]
    with torch.no_grad():
        last = model[2] if hidden else model
        last.weight.copy_(torch.tensor(W2))
        last.bias.copy_(torch.tensor(b2))
        if hidden:
            model[0].weight.copy_(torch.tensor(W1))
            model[0].bias.copy_(torch.tensor(b1))
    return model.eval(), W1, b1, W2, b2, x


def scaled(W, scale):
    return [[w * scale for w in row] for row in W]


def features(W1, b1, x, hidden):
    if not hidden:
        return [[exact.Decimal(v) for v in row] for row in x]
    return [[max(h, exact.Decimal(0)) for h in exact.affine(W1, b1, row)] for row in x]


def smallest_margin(W1, b1, W2, b2, x, hidden):
    margins = []
    for phi in features(W1, b1, x, hidden):
        z = sorted(exact.affine(W2, b2, phi))
        margins.append(z[-1] - z[-2])
    return min(margins)


# At 120 the squares of an unscaled backward signal would leave the range of float32.
@pytest.mark.parametrize("margin", [*MARGINS, 120])
def test_a_confident_float32_network_is_measured_to_four_digits(margin):
    model, W1, b1, W2, b2, x = confident_network(margin, hidden=True)
    phis = features(W1, b1, x, hidden=True)
    logits = [exact.affine(W2, b2, phi) for phi in phis]
    norms = [exact.squared_norm(phi) for phi in phis]
    ginis = [exact.gini(z) for z in logits]
    kappas = [exact.product(exact.quadratic(z, W2), n) for z, n in zip(logits, norms, strict=True)]
    # The first layer: Tr H of W1 and b1 is (‖x‖² + 1) Σ_j [unit j open] w_j' A w_j
    first = []
    for row, phi, z in zip(x, phis, logits, strict=True):
        opened = [[[w[j]] if phi[j] > 0 else [0.0] for w in W2] for j in range(3)]
        total = sum((exact.quadratic(z, column) for column in opened), start=exact.Decimal(0))
        first.append(exact.product(exact.squared_norm(row) + 1, total))
    heads = [exact.product(g, n) for g, n in zip(ginis, norms, strict=True)]

    data = (torch.tensor(x), torch.tensor([0, 1, 2, 0]))
    names = ["softmax.gini", "head.trace", "head.kappa", "curvature.trace", "relative.kappa"]
    report = sl.measure(model, data, measures=names)
    assert report.settings["dtype"] == "float32"
    # float32 logits of size 200 are off by up to 200·6e-8, and with them every e^z by 1e-5
    rel = 1e-4
    assert report["softmax.gini"].value == pytest.approx(exact.mean(ginis), rel=rel, abs=0)
    assert report["head.trace"].value == pytest.approx(exact.mean(heads), rel=rel, abs=0)
    assert report["head.kappa"].value == pytest.approx(exact.mean(kappas), rel=rel, abs=0)
    sweep = report.layers["curvature.trace"]
    assert sweep["0"].value == pytest.approx(exact.mean(first), rel=rel, abs=0)
    bias = [exact.product(g, n + 1) for g, n in zip(ginis, norms, strict=True)]
    assert sweep["2"].value == pytest.approx(exact.mean(bias), rel=rel, abs=0)
    kappa = report.layers["relative.kappa"]["2"].value
    assert kappa == pytest.approx(exact.mean(kappas), rel=rel, abs=0)


@pytest.mark.parametrize("margin", MARGINS)
def test_the_naive_forms_fail_on_the_same_network(margin):
    model, _, _, W2, b2, x = confident_network(margin, hidden=False)
    logits = [exact.affine(W2, b2, row) for row in x]
    ginis = [exact.gini(z) for z in logits]
    with torch.no_grad():
        phi = torch.tensor(x)
        p = model(phi).softmax(dim=1)
        W = model.weight.detach()
    gini = 1 - p.square().sum(dim=1)
    spread = p @ W.square().sum(dim=1) - (p @ W).square().sum(dim=1)
    norms = [exact.squared_norm(row) for row in x]
    trace = exact.mean([exact.product(g, n) for g, n in zip(ginis, norms, strict=True)])
    kappa = exact.mean(
        [exact.product(exact.quadratic(z, W2), n) for z, n in zip(logits, norms, strict=True)]
    )
    squares = phi.square().sum(dim=1)
    assert float(gini.mean()) != pytest.approx(exact.mean(ginis), rel=1e-4, abs=0)
    assert float((gini * squares).mean()) != pytest.approx(trace, rel=1e-4, abs=0)
    assert float((spread * squares).mean()) != pytest.approx(kappa, rel=1e-4, abs=0)


def test_the_naive_forms_fail_at_margin_60_even_in_float64():
    model, _, _, W2, b2, x = confident_network(60, hidden=False)
    logits = [exact.affine(W2, b2, row) for row in x]
    with torch.no_grad():
        p = model.double()(torch.tensor(x, dtype=torch.float64)).softmax(dim=1)
        W = model.weight.detach()
    gini = float((1 - p.square().sum(dim=1)).mean())
    spread = float((p @ W.square().sum(dim=1) - (p @ W).square().sum(dim=1)).mean())
    assert gini != pytest.approx(exact.mean([exact.gini(z) for z in logits]), rel=1e-4, abs=0)
    kappa = exact.mean([exact.quadratic(z, W2) for z in logits])
    assert spread != pytest.approx(kappa, rel=1e-4, abs=0)
