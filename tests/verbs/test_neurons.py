"""ρ(j) of every neuron against dense Hessians."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.verbs import reference_problems as problems


def dense_rho(model, problem, layer):
    """w_jᵀ H w_j for every input neuron, from the Hessian of the layer's weight alone."""
    weight = model.get_submodule(layer).weight
    x, y = problem.inputs(), problem.targets()

    def loss(w):
        out = torch.func.functional_call(model, {f"{layer}.weight": w}, (x,))
        return nn.functional.cross_entropy(out, y)

    hessian = torch.func.hessian(loss)(weight.detach())
    found = []
    for j in range(weight.shape[1]):
        direction = torch.zeros_like(weight)
        direction[:, j] = weight[:, j].detach()
        n = weight.dim()
        found.append(
            torch.tensordot(torch.tensordot(direction, hessian, dims=n), direction, dims=n)
        )
    return torch.stack(found)


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet])
def test_every_neuron_against_the_dense_hessian(make):
    problem = make()
    found = sl.neurons(problem.model, problem.data)
    report = sl.measure(problem.model, problem.data, measures="neuron.*")
    for layer, rows in found.items():
        expected = dense_rho(problem.model, problem, layer)
        assert rows.exact
        assert not rows.stderr.any()
        torch.testing.assert_close(rows.values, expected, rtol=1e-9, atol=1e-13)
        assert float(rows.values.sum()) == pytest.approx(
            report.layers["neuron.rho_sum"][layer].value, rel=1e-12
        )


@pytest.mark.usefixtures("only_probes")
def test_a_smooth_network_has_error_bars():
    problem = problems.relu_mlp()
    model = nn.Sequential(
        problem.model[0], nn.Tanh(), problem.model[2], nn.Tanh(), *problem.model[4:]
    )
    found = sl.neurons(model, problem.data, layers="0", max_passes=200, rtol=0.02)["0"]
    expected = dense_rho(model, problem, "0")
    assert not found.exact
    assert "probes" in found.text
    # 5 standard errors, which chance exceeds once in a million
    assert bool(((found.values - expected).abs() <= 5 * found.stderr + 1e-12).all())
