"""Other libraries agree on one network; they are optional and used nowhere else."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from zoo import plain

REASON = "a peer to compare with, not a dependency: pip install"


@pytest.fixture
def network(generator):
    """A convolutional ReLU network of layers that all peers support, and one batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
    model = model.double().eval()
    x = torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64)
    return model, x, torch.tensor([0, 1, 2, 2, 1, 0])


def test_backpack_agrees_on_the_trace_of_every_layer(network):
    reason = f"BackPACK is {REASON} backpack-for-pytorch"
    backpack = pytest.importorskip("backpack", reason=reason)
    extensions = pytest.importorskip("backpack.extensions", reason=reason)
    model, x, y = network
    found = sl.measure(model, (x, y), measures="curvature.trace").layers["curvature.trace"]
    extended = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss())(extended(x), y)
    with backpack.backpack(extensions.DiagGGNExact()):
        loss.backward()
    assert set(found) == {"0", "3", "6"}
    for layer, measurement in found.items():
        expected = sum(
            float(p.diag_ggn_exact.sum()) for p in model.get_submodule(layer).parameters()
        )
        assert measurement.value == pytest.approx(expected, rel=1e-10)


def test_backpack_agrees_on_the_hessian_of_a_smooth_network(generator):
    reason = f"BackPACK is {REASON} backpack-for-pytorch"
    backpack = pytest.importorskip("backpack", reason=reason)
    extensions = pytest.importorskip("backpack.extensions", reason=reason)
    layers = [nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 4), nn.Sigmoid()]
    model = plain.drawn(
        nn.Sequential(*layers, nn.Linear(4, 4), nn.ELU(), nn.Linear(4, 3)), generator
    )
    x, y = plain.normal(6, 1, 3, 3, generator=generator), torch.tensor([0, 1, 2, 2, 1, 0])
    report = sl.measure(model, (x, y), measures="curvature.trace")
    found, trace = report.layers["curvature.trace"], report["curvature.trace"]
    assert trace.exact
    # 2 columns of the loss and 16 of elements, and two passes that weigh these; BackPACK pulls 3
    # columns of the loss, and one of either sign for each element
    assert sweep_passes(model, x, y) == 2 + 16 + 2
    extended = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss())(extended(x), y)
    with backpack.backpack(extensions.DiagHessian()):
        loss.backward()
    for layer, measurement in found.items():
        expected = sum(float(p.diag_h.sum()) for p in model.get_submodule(layer).parameters())
        assert measurement.value == pytest.approx(expected, rel=1e-10)


def sweep_passes(model, x, y):
    """Backward passes over the data of the sweep alone."""
    preflight = sl.preflight(model, (x, y), measures="curvature.trace")
    return preflight.cost_per_sample.backwards


def test_curvlinops_agrees_on_the_whole_trace(network):
    curvlinops = pytest.importorskip(
        "curvlinops", reason=f"curvlinops is {REASON} curvlinops-for-pytorch"
    )
    model, x, y = network
    found = sl.measure(model, (x, y), measures=["curvature.trace", "curvature.ggn_trace"])
    parameters = list(model.parameters())
    for name, operator in (
        ("curvature.trace", curvlinops.HessianLinearOperator),
        ("curvature.ggn_trace", curvlinops.GGNLinearOperator),
    ):
        matrix = operator(model, nn.CrossEntropyLoss(), parameters, [(x, y)])
        dense = matrix @ torch.eye(matrix.shape[1], dtype=torch.float64)
        assert found[name].value == pytest.approx(float(dense.trace()), rel=1e-10)
