"""Measurements of networks with weight_norm, whose second derivative torch's own kernel has wrong.

The truth is a dense Hessian of the same network with the norm written by hand.
"""

import pytest
import torch
import torch.nn.functional as F

import spiritlevel as sl
from spiritlevel.testing.references import Truth
from zoo.weight_norms import NORMS, network

KINDS = pytest.mark.parametrize("kind", NORMS)


def problem(kind, dim=0):
    """Model, data, and the Hessian and the place of v in it, by hand."""
    model, by_hand = network(kind, dim)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (12,), generator=generator)
    parameters = list(model.parameters())
    loss = F.cross_entropy(by_hand(x), y)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    rows = [
        torch.cat(
            [part.flatten() for part in torch.autograd.grad(g, parameters, retain_graph=True)]
        )
        for g in torch.cat([gradient.flatten() for gradient in gradients])
    ]
    first = sum(p.numel() for p in parameters[:2])  # bias, g, v
    return model, [(x[:7], y[:7]), (x[7:], y[7:])], torch.stack(rows), slice(first, first + 6)


@pytest.mark.parametrize("dim", [0, 1, None])
@KINDS
def test_products_are_those_of_the_hessian(kind, dim):
    model, data, H, _ = problem(kind, dim)
    identity = torch.eye(len(H), dtype=torch.float64)
    torch.testing.assert_close(sl.operator(model, data) @ identity, H, rtol=1e-9, atol=1e-12)


@KINDS
def test_exact_values_and_the_largest_eigenvalue(kind):
    model, data, H, v = problem(kind)
    report = sl.measure(
        model, data, measures=["curvature.trace", "relative.kappa", "curvature.lambda_max"]
    )
    assert report["curvature.trace"].exact
    assert report["curvature.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    # stopped at a relative error of 1 % of the value, as its options say
    assert report["curvature.lambda_max"].value == pytest.approx(
        float(torch.linalg.eigvalsh(H)[-1]), rel=1e-2
    )
    names = [name for name, _ in model.named_parameters()]
    V = dict(model.named_parameters())[names[2]].detach()
    kappa = torch.einsum("sj,tj,skti,ki->", V, V, H[v, v].view(2, 3, 2, 3), torch.eye(3).double())
    rows = report.layers["relative.kappa"]
    (found,) = [rows[row] for row in rows if row.startswith("0")]
    assert found.value == pytest.approx(float(kappa), rel=1e-9)


@pytest.mark.parametrize("method", ["sample_probes", "hutchinson"])
@KINDS
def test_probes_hold_the_trace(kind, method):
    model, data, H, _ = problem(kind)
    m = sl.measure(
        model, data, measures="curvature.trace", method=method, max_passes=80, rtol=0.05
    )["curvature.trace"]
    assert abs(m.value - float(H.trace())) <= 4 * m.stderr  # once in 15,000 times by chance


@KINDS
def test_the_dense_truth_that_users_are_given(kind):
    model, data, H, _ = problem(kind)
    truth = Truth(model, data, F.cross_entropy)
    torch.testing.assert_close(truth.hessian(list(truth.parameters)), H, rtol=1e-9, atol=1e-12)
