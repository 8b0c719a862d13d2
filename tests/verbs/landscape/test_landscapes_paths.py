"""Slices between networks against closed forms and plain torch."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.landscape import landscape
from verbs.landscape.landscape_networks import images, normalized, second


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


def test_flatness_along_the_line_is_its_closed_form(tmp_path):
    problem = problems.linear_regression()
    other, told = second(problem), []
    found = landscape(
        problem.model,
        problem.data,
        loss="mse",
        to=other,
        points=5,
        measures=["relative.kappa", "curvature.trace"],
        progress=lambda done, total, what: told.append(what),
    )
    x, (start, end) = problem.inputs(), (m.weight.detach() for m in (problem.model, other))
    factor = 2 / len(start) * float(x.square().sum(dim=1).mean())  # H = 2/C · 1 ⊗ mean x xᵀ
    weights = [(1 - t) * start + t * end for t in found.axes[0].coordinates]
    expected = [factor * float(weight.square().sum()) for weight in weights]
    assert found.values("relative.kappa") == pytest.approx(expected, rel=1e-12)
    assert len(set(found.values("curvature.trace"))) == 1
    assert (
        found.losses
        == landscape(problem.model, problem.data, loss="mse", to=other, points=5).losses
    )
    assert "relative.kappa from" in str(found)
    assert any(what.startswith(f"point {len(weights)} of {len(weights)}: ") for what in told)
    again = sl.results.Landscape.from_json(found.to_json())
    assert again.values("relative.kappa") == found.values("relative.kappa")
    assert [r.settings for r in again.reports] == [r.settings for r in found.reports]
    assert torch.equal(problem.model.weight, start)


def test_statistics_of_the_ends_are_measured_with_the_weights():
    a, b = normalized(0), normalized(1)
    data, _, _ = images()
    found = landscape(a, data, to=b, points=3, reach=0.0, measures="relative.kappa")
    ends = [sl.measure(each, data, measures="relative.kappa") for each in (a, b)]
    assert [found.values("relative.kappa")[i] for i in (0, -1)] == pytest.approx(
        [end["relative.kappa"].value for end in ends], rel=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"measures": "relative.kapa"}, "Did you mean 'relative.kappa'"),
        ({"measures": ["relative.kappa"], "dimensions": 2}, "needs a line .dimensions=1."),
    ],
)
def test_measures_are_refused_before_anything_runs(arguments, match):
    problem = problems.linear_regression()
    with pytest.raises(sl.SpiritlevelError, match=match):
        landscape(problem.model, problem.data, loss="mse", **arguments)


def test_what_was_not_measured_is_asked_for():
    problem = problems.linear_regression()
    found = landscape(problem.model, problem.data, loss="mse", points=3)
    with pytest.raises(sl.SpiritlevelError, match=r"measures='relative\.kappa'"):
        found.values("relative.kappa")
