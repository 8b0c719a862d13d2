"""Slope and curvature along given changes and deletions, against dense float64 matrices."""

import pytest
import torch
from torch import nn

from spiritlevel.engine.data_pass import Needs
from spiritlevel.engine.directions.column_pass import run_column_pass
from spiritlevel.engine.directions.families import GivenChanges, NeuronDeletions
from spiritlevel.engine.directions.product_pass import run_product_pass
from spiritlevel.engine.recorded_runs import reasons_against
from spiritlevel.measures.setup import Setup
from spiritlevel.testing import references
from zoo.cases import CASES
from zoo.losses import LOSSES

ONE_INPUT = list(CASES)


class Problem:
    """A network, random changes of its weights, and the dense truth about them."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.model, batches = case.make()
        if isinstance(batches[0][0], tuple):
            pytest.skip("has two inputs")
        self.workspace = Setup(loss=LOSSES[case.loss].given).open(self.model, batches)
        self.workspace.want(Needs(sweep=True))
        self.truth = references.Truth(self.model, batches, LOSSES[case.loss].plain)
        with self.workspace.surface.preserved():
            matrices = {m.name: m for m in self.workspace.surface.matrices.values()}
            self.reasons = reasons_against(self.workspace, matrices)
        self.matrices = {n: m for n, m in matrices.items() if n not in self.reasons}
        if not self.matrices:
            pytest.skip("no weight can be followed")
        generator = torch.Generator().manual_seed(0)
        self.changes = {
            name: torch.randn(2, *m.parameter.shape, generator=generator, dtype=torch.float64)
            for name, m in self.matrices.items()
        }
        self.plain = LOSSES[case.loss].plain

    def family(self, names=None) -> GivenChanges:
        names = list(self.changes) if names is None else names
        return GivenChanges(dict.fromkeys(names, 2), lambda name, i: self.changes[name][i])

    def rows(self, changes=None) -> torch.Tensor:
        """Every change as a vector over all weights."""
        changes = self.changes if changes is None else changes
        sizes = [m.parameter.numel() for m in self.matrices.values()]
        rows = []
        for k, name in enumerate(self.matrices):
            for change in changes[name]:
                parts = [torch.zeros(size, dtype=torch.float64) for size in sizes]
                parts[k] = change.reshape(-1)
                rows.append(torch.cat(parts))
        return torch.stack(rows)

    def slopes(self, rows: torch.Tensor) -> torch.Tensor:
        parameters = dict(self.model.named_parameters())
        wanted = [parameters[name] for name in self.matrices]
        loss = self.plain(self.model(self.truth.inputs), self.truth.targets)
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        flat = [
            torch.zeros_like(w).flatten() if g is None else g.flatten()
            for g, w in zip(found, wanted, strict=True)
        ]
        return rows @ torch.cat(flat)


def close(found, expected):
    scale = max(float(expected.abs().max()), 1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ONE_INPUT)
def test_columns_give_slope_and_ggn_of_every_pair(name):
    problem = Problem(name)
    with problem.workspace.surface.preserved():
        found = run_column_pass(problem.workspace, problem.family(), pairs=True)
    rows, names = problem.rows(), list(problem.matrices)
    close(found.first, problem.slopes(rows))
    ggn = rows @ problem.truth.ggn(names) @ rows.T
    close(found.gram, ggn)
    close(found.second, ggn.diagonal())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ONE_INPUT)
def test_second_backwards_give_the_hessian_without_randomness(name):
    problem = Problem(name)
    names, rows = list(problem.matrices), problem.rows()
    hessian = problem.truth.hessian(names)
    with problem.workspace.surface.preserved():
        if problem.workspace.products.method != "reverse":
            pytest.skip("has no second backward")
        alone = [
            run_product_pass(problem.workspace, problem.family([each]), num_probes=2)
            for each in names
        ]
    close(torch.cat([each.first for each in alone]), problem.slopes(rows))
    close(torch.cat([each.second for each in alone]), (rows @ hessian * rows).sum(dim=1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["mlp", "transformer_block", "tied_in_series"])
def test_random_signs_leave_an_error_that_holds(name):
    problem = Problem(name)
    if len(problem.matrices) == 1:
        pytest.skip("nothing to separate")
    rows = problem.rows()
    expected = (rows @ problem.truth.hessian(list(problem.matrices)) * rows).sum(dim=1)
    with problem.workspace.surface.preserved():
        found = run_product_pass(problem.workspace, problem.family(), num_probes=64)
        few = run_product_pass(problem.workspace, problem.family(), num_probes=16)
    gaps = (found.second - expected) / found.probe_stderr
    assert float(gaps.abs().max()) < 4.0
    ratio = float((few.probe_stderr / found.probe_stderr).median())
    assert 1.4 < ratio < 2.8  # four times the probes, half the error


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ONE_INPUT)
def test_deletions_are_changes_of_whole_columns(name):
    problem = Problem(name)
    family = NeuronDeletions(problem.matrices)
    with problem.workspace.surface.preserved():
        found = run_column_pass(problem.workspace, family, pairs=True)
    changes = {}
    for each, matrix in problem.matrices.items():
        weight = matrix.parameter.detach()
        numbers = matrix.of(torch.arange(weight.numel()).reshape(weight.shape))
        columns = numbers.shape[2] // matrix.neurons
        of_weight = []
        for group in range(numbers.shape[0]):
            for neuron in range(matrix.neurons):
                index = numbers[group][:, neuron :: matrix.neurons]
                assert index.shape[1] == columns
                change = torch.zeros(weight.numel(), dtype=torch.float64)
                change[index.flatten()] = -weight.flatten()[index.flatten()]
                of_weight.append(change)
        changes[each] = of_weight
        assert family.count(each) == len(of_weight)
    rows = problem.rows(changes)
    close(found.first, problem.slopes(rows))
    close(found.gram, rows @ problem.truth.ggn(list(problem.matrices)) @ rows.T)
    assert list(family.spans) == list(problem.matrices)


def test_errors_over_samples_are_those_of_the_rises():
    """Against one dense Hessian for each sample."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double().eval()
        x, y = torch.randn(12, 3).double(), torch.randint(0, 3, (12,))
        change = torch.randn(2, 4, 3).double()
    workspace = Setup().open(model, (x, y))
    workspace.want(Needs(sweep=True))
    family = GivenChanges({"0.weight": 2}, lambda name, i: change[i])
    with workspace.surface.preserved():
        found = run_column_pass(workspace, family, pairs=True)
        single = run_column_pass(workspace, family, pairs=False)
    rises = []
    for n in range(12):
        truth = references.Truth(model, [(x[n : n + 1], y[n : n + 1])], nn.functional.cross_entropy)
        loss = nn.functional.cross_entropy(model(x[n : n + 1]), y[n : n + 1])
        (gradient,) = torch.autograd.grad(loss, [model[0].weight])
        rows = change.flatten(1)
        second = (rows @ truth.hessian(["0.weight"]) * rows).sum(dim=1)
        rises.append(rows @ gradient.flatten() + 0.5 * second)
    rises = torch.stack(rises)
    torch.testing.assert_close(found.rise, rises.mean(dim=0), rtol=1e-10, atol=1e-12)
    expected = torch.cov(rises.T) / 12
    torch.testing.assert_close(found.covariance, expected, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(single.data_stderr, expected.diagonal().sqrt(), rtol=1e-8, atol=0)


def test_weights_that_cannot_be_followed_are_named():
    problem = Problem("conv_transpose2d")
    assert "transposed convolution" in problem.reasons["2.weight"]
    problem = Problem("frozen_and_unused")
    assert problem.reasons["never_called.weight"] == "the outputs do not depend on it"
