"""Eigenvalues of networks against eigvalsh of dense Hessians, and moments of the density."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references
from zoo.cases import CASES
from zoo.losses import LOSSES
from zoo.plain import random

REL = 1e-6


def network(activation=nn.Tanh, sizes=(4, 6, 3), seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        i, h, o = sizes
        net = nn.Sequential(nn.Linear(i, h), activation(), nn.Linear(h, o))
    return net.double().eval()


def labelled(n=12, inputs=4, classes=3):
    generator = torch.Generator().manual_seed(9)
    return random(n, inputs), torch.randint(classes, (n,), generator=generator)


def spectrum(model, data, loss=F.cross_entropy, *, matrix="Hessian", names=None):
    """All eigenvalues, ascending."""
    truth = references.Truth(model, [data] if isinstance(data, tuple) else data, loss)
    return torch.linalg.eigvalsh(truth.matrix(matrix, names or list(truth.parameters)))


def check(found, expected, norm):
    """Values, order, residuals; relative to the value, or to round-off of the largest."""
    assert all(found.converged)
    assert found.values == pytest.approx(expected.tolist(), rel=REL, abs=1e-12 * norm)
    gram = found.vectors @ found.vectors.T
    torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=1e-10)


def check_vectors(found, H):
    """‖Hv − λv‖ is what is claimed."""
    for value, residual, v in zip(found.values, found.residuals, found.vectors, strict=True):
        norm = float((H @ v - value * v).norm())
        assert norm <= residual * (1 + 1e-3) + 1e-12 * float(H.norm())


NETWORKS = {
    "tanh": (network(), labelled()),
    "relu": (network(nn.ReLU), labelled()),
    "wide": (network(nn.GELU, (4, 20, 3)), labelled(30)),
}


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("which", ["largest", "smallest", "both"])
@pytest.mark.parametrize("name", NETWORKS)
def test_three_at_each_end(name, which, matrix):
    model, data = NETWORKS[name]
    dense = {"hessian": "Hessian", "ggn": "GGN"}[matrix]
    all_values = spectrum(model, data, matrix=dense)
    norm = float(all_values.abs().max())
    found = sl.eigenvalues(
        model, data, num=3, which=which, matrix=matrix, max_passes=2000, rtol=REL
    )
    ends = {"largest": all_values.flip(0)[:3], "smallest": all_values[:3]}
    ends["both"] = torch.cat([ends["largest"], ends["smallest"]])
    check(found, ends[which], norm)
    truth = references.Truth(model, [data], F.cross_entropy)
    check_vectors(found, truth.matrix(dense, list(truth.parameters)))


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize(
    "name", ["layernorm", "attention_batch_first", "transformer_block", "gru", "mlp_with_saddle"]
)  # fmt: skip
def test_other_networks(name, which):
    case = CASES[name]
    model, batches = case.make()
    loss = LOSSES[case.loss]
    values = spectrum(model, batches, loss.plain)
    expected = values.flip(0)[:1] if which == "largest" else values[:1]
    assert which == "largest" or float(expected) < 0, "a case with a negative smallest one"
    found = sl.eigenvalues(model, batches, which=which, loss=loss.given, max_passes=1000, rtol=REL)
    check(found, expected, float(values.abs().max()))


def test_one_layer_and_the_head():
    model, data = NETWORKS["tanh"]
    for layers, names in (("0", ["0.weight", "0.bias"]), ("head", ["2.weight", "2.bias"])):
        values = spectrum(model, data, names=names)
        found = sl.eigenvalues(
            model, data, num=2, which="both", layers=layers, max_passes=500, rtol=REL
        )
        expected = torch.cat([values.flip(0)[:2], values[:2]])
        check(found, expected, float(values.abs().max()))
        assert list(found.names) == names


class Copies(nn.Module):
    """Independent copies of one network on the same inputs: every eigenvalue comes k-fold."""

    def __init__(self, part, count, tilt=0.0):
        super().__init__()
        self.parts = nn.ModuleList(copy.deepcopy(part) for _ in range(count))
        with torch.no_grad():
            for k, module in enumerate(self.parts):
                module[2].weight.mul_(1 + k * tilt)

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], dim=1)


@pytest.mark.parametrize("tilt", [0.0, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_equal_and_nearly_equal_eigenvalues(which, tilt):
    part = network(sizes=(3, 4, 2))
    model, x = Copies(part, 3, tilt).double().eval(), random(8, 3)
    y = random(8, 2, seed=4).repeat(1, 3)
    values = spectrum(model, (x, y), F.mse_loss)
    expected = values.flip(0)[:3] if which == "largest" else values[:3]
    assert float(expected[0] - expected[2]) == pytest.approx(0.0, abs=0.1 * abs(float(expected[0])))
    found = sl.eigenvalues(model, (x, y), num=3, which=which, loss="mse", max_passes=3000, rtol=REL)
    check(found, expected, float(values.abs().max()))


def test_regression_with_equal_singular_values():
    """H = 2·mean xx' is a multiple of the identity in each output."""
    model = nn.Linear(4, 2, bias=False).double()
    x = 2 * torch.eye(4, dtype=torch.float64)
    found = sl.eigenvalues(model, (x, torch.zeros(4, 2).double()), num=4, loss="mse")
    assert found.values == pytest.approx([1.0] * 4, rel=REL)  # 2·4/4 over the two outputs
    assert all(found.converged)


def test_negative_definite():
    model, x = nn.Linear(3, 2, bias=False).double(), random(7, 3)
    y = torch.zeros(7, 2).double()

    def concave(z, t):
        return -(z - t).square().sum(dim=1)

    values = spectrum(model, (x, y), lambda z, t: concave(z, t).mean())
    assert float(values[-1]) < 0
    options = {"loss": concave, "num": 2, "which": "both"}
    found = sl.eigenvalues(model, (x, y), **options)
    check(found, torch.cat([values.flip(0)[:2], values[:2]]), float(values.abs().max()))


def test_zero_hessian():
    model, data = nn.Linear(3, 2).double(), (random(4, 3), random(4, 2))
    found = sl.eigenvalues(model, data, loss=lambda z, t: (z * t).sum(dim=1), num=2)
    assert found.values == [0.0, 0.0]


def test_more_than_there_are():
    model, data = nn.Linear(2, 1, bias=False).double(), (random(5, 2), random(5, 1))
    found = sl.eigenvalues(model, data, loss="mse", num=7)
    values = spectrum(model, data, F.mse_loss)
    assert found.values == pytest.approx(values.flip(0).tolist(), rel=REL)


# -- the registered measures --------------------------------------------------------------------


def test_measures_of_the_whole():
    model, data = NETWORKS["tanh"]
    values = spectrum(model, data)
    names = ["curvature.lambda_max", "curvature.lambda_min"]
    report = sl.measure(model, data, measures=names, max_passes=2000, rtol=REL)
    for name, value in zip(names, (values[-1], values[0]), strict=True):
        assert report[name].value == pytest.approx(float(value), rel=REL)
        assert report[name].status is sl.results.Status.OK
        assert abs(report[name].value - float(value)) <= report[name].residual


def test_measures_of_the_layers():
    model, data = NETWORKS["tanh"]
    names = ["scaled.lambda_max", "scaled.lambda_max_max"]
    report = sl.measure(model, data, measures=names, max_passes=2000, rtol=REL)
    truth = {}
    for layer in ("0", "2"):
        weight = model.get_submodule(layer).weight
        top = float(spectrum(model, data, names=[f"{layer}.weight"])[-1])
        truth[layer] = float(weight.detach().square().sum()) * top
        found = report.layers["scaled.lambda_max"][layer]
        assert found.value == pytest.approx(truth[layer], rel=REL)
    assert report["scaled.lambda_max"].value == pytest.approx(sum(truth.values()), rel=REL)
    assert report["scaled.lambda_max_max"].value == pytest.approx(max(truth.values()), rel=REL)


def test_too_few_passes_say_so():
    model, data = NETWORKS["wide"]
    report = sl.measure(model, data, measures="curvature.lambda_max", max_passes=3)
    found = report["curvature.lambda_max"]
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "max_passes" in found.text
    assert report.cost.products <= 3 * 30
    true = float(spectrum(model, data)[-1])
    assert found.value <= true * (1 + 1e-9)  # a Ritz value never exceeds the largest


def test_fewer_passes_than_vectors_are_refused_by_the_users_argument():
    model, data = NETWORKS["tanh"]
    with pytest.raises(sl.SpiritlevelError, match=r"'max_passes'.*Got num=3 and max_passes=2"):
        sl.eigenvalues(model, data, num=3, max_passes=2, rtol=REL)


@pytest.mark.parametrize(
    ("argument", "value"), [("num", 0), ("which", "middle"), ("residual_rtol", 2.0), ("rtol", 2.0)]
)
def test_arguments_are_checked(argument, value):
    model, data = NETWORKS["tanh"]
    with pytest.raises(sl.SpiritlevelError, match=rf"'{argument}' argument .*Got (num=)?{value!r}"):
        sl.eigenvalues(model, data, **{argument: value})


# -- warm starts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 3])
def test_warm_start_saves_products(num):
    model, data = NETWORKS["wide"]
    model = copy.deepcopy(model)
    before = sl.eigenvalues(model, data, num=num, max_passes=2000, rtol=REL)
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter += 1e-4 * random(*parameter.shape, seed=k)
    cold = sl.eigenvalues(model, data, num=num, max_passes=2000, rtol=REL)
    warm = sl.eigenvalues(model, data, num=num, max_passes=2000, rtol=REL, start=before)
    assert warm.values == pytest.approx(spectrum(model, data).flip(0)[:num].tolist(), rel=REL)
    assert warm.cost.products < cold.cost.products


def test_warm_start_from_the_wrong_vector_still_finds_the_largest():
    """The smallest one's vector is orthogonal to the one that is looked for."""
    model, data = NETWORKS["tanh"]
    wrong = sl.eigenvalues(model, data, which="smallest", max_passes=2000, rtol=REL)
    found = sl.eigenvalues(model, data, start=wrong, max_passes=2000, rtol=REL)
    assert found.values == pytest.approx([float(spectrum(model, data)[-1])], rel=REL)


def test_warm_start_of_other_parameters_is_refused():
    model, data = NETWORKS["tanh"]
    other = sl.eigenvalues(model, data, layers="0", max_passes=500, rtol=REL)
    with pytest.raises(sl.SpiritlevelError, match=r"'start' argument.*30 entries.*51 from"):
        sl.eigenvalues(model, data, start=other)


def test_model_and_random_state_are_left_alone():
    model, data = NETWORKS["tanh"]
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    sl.eigenvalues(model, data, max_passes=500, rtol=REL)
    sl.density(model, data, num_vectors=2, steps=5)
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, held in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, held)
        assert parameter.grad is None


# -- the density ----------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
@pytest.mark.parametrize("name", NETWORKS)
def test_moments_of_the_density(name, matrix):
    model, data = NETWORKS[name]
    values = spectrum(model, data, matrix={"hessian": "Hessian", "ggn": "GGN"}[matrix])
    found = sl.density(model, data, num_vectors=30, steps=12, matrix=matrix)
    assert found.size == len(values)
    for power in (1, 2):
        mean, stderr = found.moment(power)
        assert stderr is not None
        assert abs(mean - float((values**power).mean())) < 4 * stderr
        assert stderr < float((values**power).abs().mean())  # and that says something


def test_density_of_a_layer():
    model, data = NETWORKS["tanh"]
    values = spectrum(model, data, names=["2.weight", "2.bias"])
    found = sl.density(model, data, layers="head", num_vectors=20, steps=21)
    mean, stderr = found.moment(1)
    assert abs(mean - float(values.mean())) < 4 * stderr
    assert float(found.nodes.max()) <= float(values[-1]) * (1 + 1e-9)
