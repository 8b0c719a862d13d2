"""Products, solutions and diagonals against dense float64 matrices, and against curvlinops."""

import copy

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import precision
from spiritlevel.testing import references
from zoo.cases import CASES
from zoo.losses import LOSSES

pytestmark = pytest.mark.sampled(2)  # the others at night

NAMED = [
    "mlp",
    "conv2d",
    "attention_batch_first",
    "transformer_block",
    "gru",
    "tied_in_series",
    "tied_in_two_modules",
    "embedding_tied_with_decoder",
    "bare_parameters",
]
KINDS = ("hessian", "ggn")


def made(name):
    case = CASES[name]
    model, batches = case.make()
    truth = references.Truth(model, batches, LOSSES[case.loss].plain)
    return model, batches, LOSSES[case.loss].given, truth


def dense(truth, kind, names=None):
    of = truth.hessian if kind == "hessian" else truth.ggn
    return of(list(truth.parameters if names is None else names))


def small(activation=nn.ReLU):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            activation(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 4),
            activation(),
            nn.Linear(4, 3),
        )
        x, y = torch.randn(9, 2, 4, 4).double(), torch.randint(0, 3, (9,))
    model = model.double().eval()
    truth = references.Truth(model, [(x, y)], nn.functional.cross_entropy)
    return model, (x, y), truth


# -- products --------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_vectors_and_blocks_agree_with_the_dense_matrix(name, kind, generator):
    model, batches, loss, truth = made(name)
    matrix = dense(truth, kind)
    found = sl.operator(model, batches, kind=kind, loss=loss)
    assert found.shape == tuple(matrix.shape)
    block = torch.randn(len(matrix), 3, generator=generator, dtype=torch.float64)
    scale = float(matrix.abs().max())
    torch.testing.assert_close(found @ block, matrix @ block, rtol=0, atol=1e-10 * scale)
    torch.testing.assert_close(found @ block[:, 1], (matrix @ block)[:, 1], rtol=0, atol=1e-10)


def test_the_fisher_matrix_of_a_softmax_is_its_ggn(generator):
    model, data, truth = small()
    found = sl.operator(model, data, kind="fisher")
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(found @ v, dense(truth, "ggn") @ v, rtol=1e-10, atol=1e-12)
    # and the mean of score scoreᵀ over labels that the model itself draws
    p = model(data[0]).softmax(dim=1).detach()
    product = torch.zeros_like(v)
    for n in range(len(p)):
        for label in range(3):
            loss = nn.functional.cross_entropy(model(data[0][n : n + 1]), torch.tensor([label]))
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            score = torch.cat([g.flatten() for g in gradient])
            product += p[n, label] * score * (score @ v) / len(p)
    torch.testing.assert_close(found @ v, product, rtol=1e-9, atol=1e-12)


def test_one_layer_is_its_block(generator):
    model, data, truth = small(nn.Tanh)
    found = sl.operator(model, data, layers="4")
    assert found.names == ("4.weight", "4.bias")
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    expected = dense(truth, "hessian", found.names) @ v
    torch.testing.assert_close(found @ v, expected, rtol=1e-10, atol=1e-12)


def test_split_and_join_are_inverse(generator):
    model, data, _ = small()
    found = sl.operator(model, data)
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    parts = found.split(v)
    assert {n: p.shape for n, p in parts.items()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    assert torch.equal(found.join(parts), v)


def test_scipy_finds_the_eigenvalues(generator):
    model, data, truth = small(nn.Tanh)
    found = sl.operator(model, data).to_scipy()
    assert isinstance(found, scipy.sparse.linalg.LinearOperator)
    matrix = dense(truth, "hessian")
    values = scipy.sparse.linalg.eigsh(found, k=3, return_eigenvectors=False)
    expected = sorted(torch.linalg.eigvalsh(matrix).tolist(), key=abs)[-3:]
    np.testing.assert_allclose(sorted(values), sorted(expected), rtol=1e-8)
    block = torch.randn(len(matrix), 2, generator=generator, dtype=torch.float64)
    np.testing.assert_allclose(found @ block.numpy(), (matrix @ block).numpy(), atol=1e-12)
    np.testing.assert_allclose(found.T @ block.numpy(), (matrix @ block).numpy(), atol=1e-12)


def test_the_work_is_counted_and_the_model_is_left_alone(generator):
    model, data, _ = small()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    found = sl.operator(model, data)
    start = found.cost.products
    random_state = torch.get_rng_state()
    found @ torch.randn(found.shape[0], 4, generator=generator, dtype=torch.float64)
    assert found.cost.products - start >= 4 * 9
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))


def test_the_matrix_follows_the_weights(generator):
    model, data, _ = small(nn.Tanh)
    found = sl.operator(model, data)
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    first = found @ v
    with torch.no_grad():
        model[4].weight.mul_(2.0)
    fresh = sl.operator(model, data) @ v
    assert not torch.allclose(first, fresh, rtol=1e-3)
    torch.testing.assert_close(found @ v, fresh, rtol=1e-12, atol=1e-14)


# -- solutions -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "damping"), [("ggn", 1e-2), ("hessian", 5.0)])
def test_solutions_are_those_of_the_dense_system(kind, damping, generator):
    model, data, truth = small(nn.Tanh)
    found = sl.operator(model, data, kind=kind)
    v = torch.randn(found.shape[0], 2, generator=generator, dtype=torch.float64)
    solution = found.solve(v, damping, rtol=1e-10)
    matrix = dense(truth, kind) + damping * torch.eye(len(v)).double()
    assert all(solution.converged)
    assert solution.text == ""
    torch.testing.assert_close(
        solution.vectors, torch.linalg.solve(matrix, v), rtol=1e-7, atol=1e-8
    )
    true = (matrix @ solution.vectors - v).norm(dim=0) / v.norm(dim=0)
    np.testing.assert_allclose(solution.residuals, true, rtol=0, atol=1e-13)


def test_a_system_that_is_not_positive_definite_says_so():
    model, data, truth = small(nn.Tanh)
    values, vectors = torch.linalg.eigh(dense(truth, "hessian"))
    assert values[0] < -1e-4
    solution = sl.operator(model, data).solve(vectors[:, 0], 0.0)
    assert solution.converged == [False]
    assert "not positive definite" in solution.text


def test_too_few_passes_are_reported(generator):
    model, data, _ = small()
    found = sl.operator(model, data, kind="ggn")
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    solution = found.solve(v, 1e-4, max_passes=2)
    assert solution.converged == [False]
    assert solution.passes == 3
    assert solution.residuals[0] > 1e-3
    assert "Raise 'max_passes'" in solution.text
    assert found.solve(torch.zeros_like(v), 1e-4).vectors.abs().max() == 0


# -- the diagonal ----------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMED)
def test_the_diagonal_of_the_ggn_is_exact(name):
    model, batches, loss, truth = made(name)
    found = sl.diagonal(model, batches, kind="ggn", loss=loss)
    assert all(found.exact.values())
    expected = dense(truth, "ggn").diagonal()
    flat = torch.cat([found.values[name].flatten() for name in truth.parameters])
    torch.testing.assert_close(flat, expected, rtol=1e-9, atol=1e-12 * float(expected.max()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_the_diagonal_of_the_hessian_is_exact(activation):
    model, data, truth = small(activation)
    found = sl.diagonal(model, data)
    assert all(found.exact.values())
    for name, values in found.values.items():
        expected = dense(truth, "hessian", [name]).diagonal()
        torch.testing.assert_close(values.flatten(), expected, rtol=1e-9, atol=1e-13)
        assert not found.stderr[name].any()


@pytest.mark.usefixtures("only_probes")
def test_smooth_networks_have_errors_that_hold():
    model, data, truth = small(nn.Tanh)
    found = sl.diagonal(model, data, num_probes=200)
    assert found.exact["6.weight"]
    assert not found.exact["4.weight"]
    assert "weight probes of H − GGN" in found.text["4.weight"]
    for name in ("0.weight", "4.weight", "4.bias"):
        expected = dense(truth, "hessian", [name]).diagonal()
        gaps = (found.values[name].flatten() - expected) / found.stderr[name].flatten()
        assert 0.6 < gaps.square().mean().sqrt() < 1.5  # about 1 where the errors are honest
        plain = sl.diagonal(model, data, kind="ggn").values[name].flatten()
        assert (found.values[name].flatten() - expected).norm() < (plain - expected).norm()


def test_many_outputs_are_probed(monkeypatch):
    monkeypatch.setattr(precision, "EXACT_COLUMNS", 1)
    model, data, truth = small()
    found = sl.diagonal(model, data, kind="ggn")
    assert not any(found.exact.values())
    assert "output probes" in found.text["0.weight"]
    expected = dense(truth, "ggn", ["0.weight"]).diagonal()
    gaps = (found.values["0.weight"].flatten() - expected) / found.stderr["0.weight"].flatten()
    assert gaps.square().mean().sqrt() < 2.5


def test_small_memory_gives_the_same_diagonal():
    model, data, _ = small()
    whole, part = sl.diagonal(model, data), sl.diagonal(model, data, memory=1 << 12)
    for name, values in whole.values.items():
        torch.testing.assert_close(part.values[name], values, rtol=1e-12, atol=1e-15)


# -- refusals --------------------------------------------------------------------------------


def refused(match, function, *args, **kwargs):
    with pytest.raises(sl.SpiritlevelError, match=match):
        function(*args, **kwargs)


def test_wrong_arguments_are_refused():
    model, data, _ = small()
    refused(r"one of hessian, ggn, fisher\. Got 'hesian'", sl.operator, model, data, kind="hesian")
    refused(r"one of hessian, ggn, fisher\. Got 'all'", sl.diagonal, model, data, kind="all")
    refused(r"at least 2.* Got 1\.", sl.diagonal, model, data, num_probes=1)

    def absolute(outputs, targets):
        return (outputs.sum(dim=1) ** 4) + 0 * targets

    refused("needs a loss that is a log-likelihood", sl.operator, model, data, loss=absolute,
            kind="fisher")  # fmt: skip
    found = sl.operator(model, data)
    size = found.shape[0]
    refused(rf"shape \({size},\) or .*Got torch.float64 of shape \(3,\)", found.__matmul__,
            torch.ones(3).double())  # fmt: skip
    refused("operator.to_scipy", found.__matmul__, np.ones(size))
    refused("finite numbers", found.__matmul__, torch.full((size,), torch.nan))
    refused(r"at least 0 and finite.* Got -1", found.solve, torch.ones(size), -1)
    refused(r"between 0 and 1\. Got 2", found.solve, torch.ones(size), 1.0, rtol=2)
    refused("at least 1", found.solve, torch.ones(size), 1.0, max_passes=0)
    refused(r"'0.bias' in shape \(3,\)", found.join, {"0.weight": model[0].weight})
    model[6] = nn.Linear(4, 2).double()
    refused("had when the operator was made", found.__matmul__, torch.ones(size).double())


# -- another library -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_curvlinops_agrees(kind, generator):
    curvlinops = pytest.importorskip(
        "curvlinops", reason="a peer to compare with: pip install curvlinops-for-pytorch"
    )
    model, (x, y), _ = small(nn.Tanh)
    theirs = {"hessian": "HessianLinearOperator", "ggn": "GGNLinearOperator"}[kind]
    parameters = list(model.parameters())
    matrix = getattr(curvlinops, theirs)(model, nn.CrossEntropyLoss(), parameters, [(x, y)])
    found = sl.operator(model, (x, y), kind=kind)
    v = torch.randn(found.shape[0], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(found @ v, matrix @ v, rtol=1e-10, atol=1e-12)
