"""Feature robustness against brute force, Theorem 5 of paper 002 and the bound of paper 003."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import spiritlevel as sl
from spiritlevel.testing import references
from zoo.plain import drawn, mlp, normal

DELTAS = (0.3, 0.1, 0.03, 0.01)


def value(model, data, name, **options):
    return sl.measure(model, data, measures=name, **options)[name]


def haar(size, generator):
    """By the polar factor of a normal matrix: no QR, no signs to fix."""
    U, _, Vh = torch.linalg.svd(torch.randn(size, size, generator=generator, dtype=torch.float64))
    return U @ Vh


def rises(model, parameter, x, y, loss, delta, draws, generator):
    """L(W + δWA) − L(W) for whole matrices A, one forward each; no pairs, no tricks."""
    W = parameter.detach().clone()
    matrix = W.flatten(1)
    found = []
    with torch.no_grad():
        here = float(loss(model(x), y))
        for _ in range(draws):
            A = haar(matrix.shape[1], generator)
            parameter.copy_((matrix + delta * matrix @ A).view_as(W))
            found.append(float(loss(model(x), y)) - here)
        parameter.copy_(W)
    return torch.tensor(found, dtype=torch.float64)


def check_against(found, brute):
    error = math.hypot(found.stderr or 0.0, float(brute.std()) / math.sqrt(len(brute)))
    assert abs(found.value - float(brute.mean())) <= 4.5 * error  # once in 100,000


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_robustness_of_a_head_against_brute_force(loss, generator):
    model = mlp([4, 6, 5, 3], nn.ReLU, generator)
    x = normal(6, 4, generator=generator)
    y = torch.arange(6) % 3 if loss == "cross_entropy" else normal(6, 3, generator=generator)
    mean = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}[loss]
    name = "sensitivity.feature_robustness"
    options = {"options": {"delta": 0.8}, "loss": loss}
    found = value(model, (x, y), name, **options)
    assert found.text.startswith("layer '4'; 32 draws of ±A")
    brute = rises(model, model[4].weight, x, y, mean, 0.8, 3000, generator)
    check_against(found, brute)
    if loss == "mse":  # nothing beyond the second order, which is known
        assert found.exact
    else:
        assert found.stderr < 0.05 * float(brute.std()) / math.sqrt(32)


@pytest.mark.parametrize("kernel", ["ball", 0.2])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_other_kernels_against_brute_force(kernel, loss, generator):
    """Vectors z of the kernel, drawn for each sample's features by rejection, without matrices."""
    model = mlp([4, 6, 5, 3], nn.ReLU, generator)
    x = normal(6, 4, generator=generator)
    y = torch.arange(6) % 3 if loss == "cross_entropy" else normal(6, 3, generator=generator)
    delta, layer = 0.8, model[4]
    with torch.no_grad():
        phi = model[:4](x)
        z = torch.randn(120_000, 5, generator=generator, dtype=torch.float64)
        if kernel == "ball":
            z = 2 * torch.rand(120_000, 5, generator=generator, dtype=torch.float64) - 1
        else:
            z = kernel * z
        z = z[z.norm(dim=1) < 1]
        mean = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}[loss]
        brute = torch.zeros(len(z), dtype=torch.float64)
        for features, target in zip(phi, y, strict=True):
            outputs = layer(features + delta * features.norm() * z)
            many = mean(outputs, target.expand(len(z), *target.shape), reduction="none")
            here = mean(layer(features)[None], target[None])
            brute += ((many if many.dim() == 1 else many.mean(dim=1)) - here) / len(x)
    options = {"options": {"delta": delta, "kernel": kernel}, "loss": loss}
    check_against(value(model, (x, y), "sensitivity.feature_robustness", **options), brute)
    ratio = float((z.norm(dim=1) ** 2).mean())
    predicted = value(model, (x, y), "sensitivity.robustness_prediction", **options)
    on_sphere = value(
        model, (x, y), "sensitivity.robustness_prediction", options={"delta": delta}, loss=loss
    )
    # 1 % is five standard errors of the mean square over the vectors that were kept
    assert predicted.value == pytest.approx(ratio * on_sphere.value, rel=0.01)


LAYERS = {"inner linear": "2", "first": "0"}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_robustness_of_an_inner_layer_against_brute_force(layer, generator):
    model = mlp([4, 6, 5, 3], nn.Tanh, generator)
    x, y = normal(6, 4, generator=generator), torch.arange(6) % 3
    found = value(
        model,
        (x, y),
        "sensitivity.feature_robustness",
        layers=layer,
        options={"delta": 0.5},
        max_passes=300,
    )
    assert found.text.startswith(f"layer {layer!r}; ")
    weight = model.get_submodule(layer).weight
    check_against(found, rises(model, weight, x, y, F.cross_entropy, 0.5, 3000, generator))


def test_robustness_of_convolutions(generator):
    """A convolution behind other layers, and as a head under global average pooling."""
    model = drawn(
        nn.Sequential(
            nn.Conv2d(1, 3, 2),
            nn.Tanh(),
            nn.Conv2d(3, 3, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        generator,
    )
    x, y = normal(6, 1, 4, 4, generator=generator), torch.arange(6) % 3
    for layer, options in (("2", {}), ("0", {"layers": "0", "max_passes": 300})):
        found = value(
            model,
            (x, y),
            "sensitivity.feature_robustness",
            options={"delta": 0.7},
            **options,
        )
        assert found.text.startswith(f"layer {layer!r}")
        weight = model.get_submodule(layer).weight
        check_against(found, rises(model, weight, x, y, F.cross_entropy, 0.7, 3000, generator))


def test_groups_are_turned_each_by_its_own_matrix(generator):
    """κ is a sum over groups; so must the mean rise of the loss be."""
    model = drawn(
        nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.Flatten(), nn.Linear(24, 3)), generator
    )
    x, y = normal(6, 2, 3, 3, generator=generator).repeat(1, 2, 1, 1), torch.zeros(6, 3).double()
    with torch.no_grad():  # two groups that do the same: one matrix for both would double the rise
        model[0].weight[3:] = model[0].weight[:3]
        model[2].weight[:, 12:] = model[2].weight[:, :12]
    options = {"loss": "mse", "layers": "0", "max_passes": 400}
    found = value(model, (x, y), "sensitivity.feature_robustness", **options)
    predicted = value(model, (x, y), "sensitivity.robustness_prediction", **options)
    # mse on a network that is linear in this layer: Theorem 5 without a rest, at any point
    assert abs(found.value - predicted.value) <= 4.5 * found.stderr
    assert found.stderr < 0.1 * found.value


def test_draws_stop_at_the_precision_and_say_what_was_missing(generator):
    model = mlp([4, 6, 5, 3], nn.Tanh, generator)
    data = (normal(6, 4, generator=generator), torch.arange(6) % 3)
    name = "sensitivity.feature_robustness"
    loose = value(model, data, name, layers="0", rtol=0.5, max_passes=400)
    low, high = loose.interval
    assert loose.status is sl.results.Status.OK
    assert (high - low) / 2 <= 0.5 * abs(loose.value)
    missed = value(model, data, name, layers="0", rtol=0.01, max_passes=20)
    assert missed.status is sl.results.Status.NOT_CONVERGED
    assert "20 draws" in missed.text
    assert "max_passes" in missed.text
    assert missed.cost.forwards == 6 * (2 * 20 + 1)


# -- Theorem 5 of paper 002, and the bound of paper 003 -----------------------------------------


def to_minimum(model, parameters, x, y, loss):
    """Newton's method on dense Hessians, with halved steps, until the gradient is at round-off."""
    names = [n for n, p in model.named_parameters() if any(p is q for q in parameters)]
    for _ in range(100):
        here = loss(model(x), y)
        g = parameters_to_vector(torch.autograd.grad(here, parameters))
        if float(g.norm()) < 1e-11:
            return
        values, vectors = torch.linalg.eigh(references.Truth(model, [(x, y)], loss).hessian(names))
        # flat directions (all logits alike) are left alone, negative ones walked down
        inverse = torch.where(values.abs() > 1e-9, 1 / values.abs(), torch.zeros_like(values))
        step = vectors @ (inverse * (vectors.T @ g))
        start = parameters_to_vector(parameters).detach()
        with torch.no_grad():
            for halvings in range(40):
                vector_to_parameters(start - step / 2**halvings, parameters)
                if float(loss(model(x), y)) <= float(here):
                    break
    raise AssertionError(f"no minimum: gradient {float(g.norm()):.2g}")


@pytest.fixture(scope="module")
def minimum():
    """A tanh network whose head is at its minimum: convex, and finite as labels contradict."""
    generator = torch.Generator().manual_seed(5)
    model = mlp([3, 4, 3], nn.Tanh, generator)
    x = normal(40, 3, generator=generator)
    y = torch.randint(3, (40,), generator=generator)
    to_minimum(model, [model[2].weight, model[2].bias], x, y, F.cross_entropy)
    return model, x, y


def family(model, data, delta, **options):
    names = ["feature_robustness", "robustness_prediction", "robustness_bound"]
    report = sl.measure(
        model,
        data,
        measures=[f"sensitivity.{name}" for name in names],
        options={"delta": delta},
        **options,
    )
    return [report[f"sensitivity.{name}"] for name in names]


def test_prediction_is_the_limit_of_robustness(minimum):
    """The rest is of order δ⁴, so the ratio leaves 1 like δ²."""
    model, x, y = minimum
    rates = []
    for delta in DELTAS:
        found, predicted, bound = family(model, (x, y), delta)
        assert predicted.exact
        assert predicted.value <= bound.value
        apart, error = found.value - predicted.value, 4.5 * found.stderr
        rates.append((apart / predicted.value / delta**2, error / predicted.value / delta**2))
    (first, _), *others = rates
    assert abs(first) > 0.01  # there is a rest to see
    for rate, error in others:  # at δ = 0.3 the next order adds its part
        assert abs(rate - first) <= 0.3 * abs(first) + error


@pytest.mark.parametrize("delta", DELTAS)
def test_theorem_5_by_brute_force(minimum, delta):
    """The same without the library's draws: whole matrices, single signs, plain differences."""
    model, x, y = minimum
    generator = torch.Generator().manual_seed(11)
    brute = rises(model, model[2].weight, x, y, F.cross_entropy, delta, 4000, generator)
    found, predicted, bound = family(model, (x, y), delta)
    check_against(found, brute)
    error = float(brute.std()) / math.sqrt(len(brute))
    curved = abs(found.value - predicted.value)  # the higher orders
    assert abs(float(brute.mean()) - predicted.value) <= 4.5 * error + curved
    # every single matrix obeys the bound of paper 003 up to the third order
    assert float(brute.max()) <= bound.value * (1 + 5 * delta)


def test_theorem_5_of_an_inner_layer():
    """A smooth first layer at a minimum of its weights, which noise keeps from fitting the data."""
    generator = torch.Generator().manual_seed(8)
    model = mlp([3, 3, 2], nn.Tanh, generator)
    x = normal(60, 3, generator=generator)
    y = model(x).detach() + 0.3 * normal(60, 2, generator=generator)
    to_minimum(model, [model[0].weight], x, y, F.mse_loss)
    for delta in (0.1, 0.03):
        found, predicted, bound = family(
            model, (x, y), delta, loss="mse", layers="0", max_passes=600
        )
        margin = 4.5 * math.hypot(found.stderr, predicted.stderr or 0.0)
        assert margin < 0.4 * predicted.value
        assert abs(found.value - predicted.value) <= margin + 3 * delta**2 * predicted.value
        assert predicted.value <= bound.value


def test_away_from_a_minimum_single_matrices_break_the_bound(minimum):
    """The caveat on the card is real: the first order is there, and larger."""
    _, x, y = minimum
    generator = torch.Generator().manual_seed(1)
    moved = mlp([3, 4, 3], nn.Tanh, generator)
    _, _, bound = family(moved, (x, y), 0.01)
    brute = rises(moved, moved[2].weight, x, y, F.cross_entropy, 0.01, 200, generator)
    assert float(brute.max()) > bound.value


def test_prediction_is_shared_with_relative_kappa(generator):
    model = mlp([4, 6, 5, 3], nn.ReLU, generator)
    data = (normal(8, 4, generator=generator), torch.arange(8) % 3)
    both = ["relative.kappa", "sensitivity.robustness_prediction"]
    report = sl.measure(model, data, measures=both, options={"delta": 0.2})
    kappa = report.layers["relative.kappa"]["4"].value
    assert report[both[1]].value == pytest.approx(kappa * 0.2**2 / (2 * 5), rel=1e-12)
    unknown = copy.deepcopy(model)  # of the other one a second call recalls what it looked at
    assert report.cost == sl.measure(unknown, data, measures=both[0]).cost
    truth = references.Truth(model, [data], F.cross_entropy)
    H = truth.hessian(["4.weight"])
    dense = references.kappa(H, model[4].weight, references.matrix_view(model[4]))
    assert report[both[1]].value == pytest.approx(dense * 0.2**2 / (2 * 5), rel=1e-11)
    bound = value(model, data, "sensitivity.robustness_bound", options={"delta": 0.2}, rtol=1e-6)
    top = float(torch.linalg.eigvalsh(H)[-1])
    expected = 0.2**2 / 2 * float(model[4].weight.detach().square().sum()) * top
    assert bound.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.usefixtures("only_probes")
def test_prediction_of_a_smooth_layer_carries_its_error_bar(generator):
    model = mlp([4, 6, 3], nn.Tanh, generator)
    data = (normal(8, 4, generator=generator), torch.arange(8) % 3)
    found = value(
        model, data, "sensitivity.robustness_prediction", layers="0", max_passes=40, rtol=0.01
    )
    truth = references.Truth(model, [data], F.cross_entropy)
    H = truth.hessian(["0.weight"])
    kappa = references.kappa(H, model[0].weight, references.matrix_view(model[0]))
    assert abs(found.value - kappa * 0.1**2 / (2 * 4)) <= 5 * found.stderr
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "max_passes=" in found.text


def test_bound_is_shared_with_scaled_lambda_max(generator):
    model = mlp([4, 6, 5, 3], nn.ReLU, generator)
    data = (normal(8, 4, generator=generator), torch.arange(8) % 3)
    both = ["scaled.lambda_max", "sensitivity.robustness_bound"]
    report = sl.measure(model, data, measures=both)
    half = 0.1**2 / 2
    expected = half * report.layers["scaled.lambda_max"]["4"].value
    assert report[both[1]].value == pytest.approx(expected, rel=1e-12)
    unknown = copy.deepcopy(model)  # of the other one a second call recalls what it looked at
    assert report.cost == sl.measure(unknown, data, measures=both[0]).cost
    alone = value(model, data, both[1])
    assert alone.value == pytest.approx(expected, rel=1e-8)


def test_the_layer_is_the_head_whatever_the_order_of_registration(generator):
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(5, 3), nn.Linear(4, 5)

        def forward(self, x):
            return self.last(self.first(x).relu())

    model = drawn(Backwards(), generator)
    data = (normal(8, 4, generator=generator), torch.arange(8) % 3)
    report = sl.measure(model, data, measures="sensitivity.feature_robustness")
    assert list(report.layers["sensitivity.feature_robustness"]) == ["last"]


def test_layers_without_features_are_refused(generator):
    model = drawn(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), generator)
    data = (torch.randint(9, (5, 3), generator=generator), torch.arange(5) % 3)
    with pytest.raises(sl.SpiritlevelError, match=r"linear or convolutional layer.*Got 0"):
        value(model, data, "sensitivity.feature_robustness", layers="0")
