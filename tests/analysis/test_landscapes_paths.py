"""Slices between networks against closed forms and plain torch."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from analysis.landscape_networks import images, normalized, second
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.analysis.landscape import landscape


def test_the_line_between_two_networks_is_its_closed_form():
    problem = problems.linear_regression()
    other = second(problem)
    found = landscape(problem.model, problem.data, loss="mse", to=other, points=9)
    x, y = problem.inputs(), problem.targets()
    a, b = problem.model(x).detach() - y, other(x).detach() - y
    expected = [float((((1 - t) * a + t * b) ** 2).mean()) for t in found.axes[0].coordinates]
    assert found.losses == pytest.approx(expected, rel=1e-13)
    assert found.axes[0].coordinates[0] == -0.5
    assert found.axes[0].coordinates[-1] == 1.5
    length = sum(
        float((p - q).detach().square().sum())
        for p, q in zip(problem.model.parameters(), other.parameters(), strict=True)
    )
    assert found.axes[0].length == pytest.approx(length**0.5)
    assert found.directions == "path"


def test_the_ends_of_a_path_are_the_networks_with_their_own_statistics():
    a, b = normalized(0), normalized(1)
    data, x, y = images()
    b.requires_grad_(False)
    a[0].requires_grad_(False)  # what is frozen lies on the way all the same
    found = landscape(a, data, to=b, names=["one", "two"], points=5)
    for mark, model in zip(found.marks, (a, b), strict=True):
        outputs = model(x).detach()
        assert found.at(*mark.at) == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-13)
        index = found.axes[0].coordinates.index(mark.at[0])
        assert found.errors[index] == pytest.approx(float((outputs.argmax(1) != y).double().mean()))
    assert [mark.name for mark in found.marks] == ["one", "two"]
    assert "running statistics are mixed" in found.text


@pytest.mark.parametrize("t", [-0.5, 0.5, 1.5])
def test_statistics_are_mixed_between_the_networks_and_held_beyond_them(t):
    a, b = normalized(0), normalized(1)
    data, x, y = images()
    found = landscape(a, data, to=b.state_dict(), points=5)
    mixed = copy.deepcopy(a)
    inside = min(max(t, 0.0), 1.0)
    with torch.no_grad():
        for name, value in mixed.state_dict().items():
            if value.is_floating_point():
                share = inside if "running" in name else t
                value.copy_((1 - share) * a.state_dict()[name] + share * b.state_dict()[name])
    assert found.at(t) == pytest.approx(float(F.cross_entropy(mixed(x).detach(), y)), rel=1e-12)


def test_the_plane_through_three_networks():
    problem = problems.linear_regression()
    b = second(problem)
    c = copy.deepcopy(b)
    with torch.no_grad():
        c.weight.mul_(-2)
    found = landscape(problem.model, problem.data, loss="mse", to=[b, c], points=4, reach=1.0)
    x, y = problem.inputs(), problem.targets()
    ra, rb, rc = (m(x).detach() - y for m in (problem.model, b, c))
    assert found.axes[0].coordinates == (-1.0, 0.0, 1.0, 2.0)
    for i, s in enumerate(found.axes[0].coordinates):
        for j, t in enumerate(found.axes[1].coordinates):
            expected = (((1 - s - t) * ra + s * rb + t * rc) ** 2).mean()
            assert found.grid()[i][j] == pytest.approx(float(expected), rel=1e-12)
    assert [mark.at for mark in found.marks] == [(0, 0), (1, 0), (0, 1)]
    assert found.barrier is None


def test_a_tied_weight_moves_in_both_places():
    def tied(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double().eval()
        model[2].weight = model[0].weight
        return model

    a, b = tied(0), tied(1)
    x, y = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 3, 0, 1])
    found = landscape(a, (x, y), to=b.state_dict(), points=3)
    assert found.at(1.0) == pytest.approx(float(F.cross_entropy(b(x).detach(), y)), rel=1e-13)


def test_the_barrier_is_the_largest_rise_above_the_line():
    problem = problems.relu_mlp()
    other = second(problem)
    found = landscape(problem.model, problem.data, to=other, points=5)
    start, middle, end = (found.at(t) for t in (0.0, 0.5, 1.0))
    assert found.barrier == pytest.approx(max(0.0, middle - (start + end) / 2), rel=1e-12)
    assert landscape(problem.model, problem.data, points=3).barrier is None


def test_a_network_is_no_way_to_itself():
    problem = problems.relu_mlp()
    with pytest.raises(sl.SpiritlevelError, match="has the same weights as the model"):
        landscape(problem.model, problem.data, to=copy.deepcopy(problem.model))
