"""Slices of the loss against closed forms, brute force and plain torch."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.model.surface import Surface
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.landscape import Landscape, directions, landscape, num_points
from verbs.landscape.landscape_networks import images, normalized

pytestmark = pytest.mark.sampled(2)  # the others at night


def state(model):
    return {
        **{name: p.detach().clone() for name, p in model.named_parameters()},
        **{f"{name}/grad": p.grad for name, p in model.named_parameters()},
        **{name: b.clone() for name, b in model.named_buffers()},
        "rng": torch.get_rng_state(),
    }


def assert_same_state(model, before):
    after = state(model)
    assert after.keys() == before.keys()
    for name, value in after.items():
        assert value is before[name] or torch.equal(value, before[name]), name


# -- closed forms ------------------------------------------------------------------------------


def regression_hessian(problem):
    """In the order of (weight row, bias) of each output: I ⊗ mean x̃ x̃ᵀ for the mean over 2."""
    x = problem.inputs()
    wide = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    return wide.T @ wide / len(x)


def test_a_random_slice_of_a_quadratic_loss_is_its_closed_form():
    problem = problems.linear_regression()
    found = landscape(problem.model, problem.data, loss="mse", seed=3, points=9, reach=2.0)
    surface = Surface(problem.model, problem.data, loss="mse")
    step = directions.random_direction(surface, seed=3, number=0, biases=False)["weight"]
    x, y = problem.inputs(), problem.targets()
    residual = problem.model(x).detach() - y
    start, slope = (residual**2).mean(), 2 * (residual * (x @ step.T)).mean()
    bend = ((x @ step.T) ** 2).mean()
    t = torch.tensor(found.axes[0].coordinates, dtype=torch.float64)
    expected = start + slope * t + bend * t**2
    assert t.tolist() == [-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2]
    assert found.losses == pytest.approx(expected.tolist(), rel=1e-13)
    assert found.errors is None


def test_along_an_eigenvector_the_second_difference_is_the_eigenvalue():
    problem = problems.linear_regression()
    found = landscape(problem.model, problem.data, loss="mse", directions="eigen", points=5)
    largest = float(torch.linalg.eigvalsh(regression_hessian(problem))[-1])
    (axis,), h = found.axes, 0.5
    bends = [
        (a - 2 * b + c) / h**2
        for a, b, c in zip(found.losses, found.losses[1:], found.losses[2:], strict=False)
    ]
    assert bends == pytest.approx([largest] * 3, rel=1e-9)
    assert axis.eigenvalue == pytest.approx(largest, rel=1e-9)
    assert axis.length == pytest.approx(1.0, rel=1e-12)
    assert found.parabola() == pytest.approx(list(found.losses), rel=1e-9)  # a parabola itself


def test_the_slope_of_the_parabola_is_that_of_the_loss():
    problem = problems.relu_mlp()
    found = landscape(problem.model, problem.data, directions="eigen", points=3, reach=1e-5)
    slope = (found.losses[2] - found.losses[0]) / 2e-5
    assert abs(slope) > 1e-3
    assert found.axes[0].slope == pytest.approx(slope, rel=1e-4)
    assert landscape(problem.model, problem.data, points=3).parabola() is None


def test_a_plane_of_two_eigenvectors():
    problem = problems.softmax_regression()
    found = landscape(
        problem.model, problem.data, directions="eigen", dimensions=2, points=3, reach=1e-3
    )
    names = dict(problem.model.named_parameters())

    def loss(flat):
        parts = flat.split([p.numel() for p in names.values()])
        moved = {n: v.view_as(names[n]) for n, v in zip(names, parts, strict=True)}
        outputs = torch.func.functional_call(problem.model, moved, (problem.inputs(),))
        return F.cross_entropy(outputs, problem.targets())

    flat = torch.cat([p.detach().flatten() for p in names.values()])
    values = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    assert [a.eigenvalue for a in found.axes] == pytest.approx(values[[-1, -2]].tolist(), rel=1e-6)
    rows, (second_value, first_value) = found.grid(), values[-2:].tolist()
    # 1e-4: a second difference of step 1e-3 keeps that much of a smooth loss
    assert (rows[0][1] - 2 * rows[1][1] + rows[2][1]) / 1e-6 == pytest.approx(first_value, rel=1e-4)
    assert (rows[1][0] - 2 * rows[1][1] + rows[1][2]) / 1e-6 == pytest.approx(
        second_value, rel=1e-4
    )
    assert found.at(0.0, 1e-3) == rows[1][2]


def test_an_eigenvector_that_was_not_found_is_said():
    problem = problems.relu_mlp()
    found = landscape(problem.model, problem.data, directions="eigen", points=3, max_passes=2)
    assert "Not converged after 2 products" in found.text
    assert "Not converged" not in landscape(problem.model, problem.data, points=3).text


# -- filter normalization ----------------------------------------------------------------------


@pytest.mark.parametrize("biases", [False, True])
def test_filters_have_the_norms_of_the_network(biases):
    model = normalized(0)
    surface = Surface(model, images()[0])
    step = directions.random_direction(surface, seed=0, number=0, biases=biases)
    moved = 0
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (name in step) == biases
            if biases:
                assert float(step[name].norm()) == pytest.approx(float(parameter.detach().norm()))
            continue
        for i in range(len(parameter)):
            moved += 1
            assert float(step[name][i].norm()) == pytest.approx(float(parameter[i].detach().norm()))
    assert moved == 3 + 3
    again = directions.random_direction(surface, seed=0, number=0, biases=biases)
    other = directions.random_direction(surface, seed=0, number=1, biases=biases)
    assert all(torch.equal(step[name], again[name]) for name in step)
    assert not any(torch.equal(step[name], other[name]) for name in step)


def test_filters_of_a_grouped_transposed_convolution_are_its_output_channels():
    layer = nn.ConvTranspose2d(4, 6, 2, groups=2).double().eval()
    surface = Surface(layer, [(torch.zeros(1, 4, 2, 2), torch.zeros(1))], loss="mse")
    step = directions.random_direction(surface, seed=0, number=0, biases=False)["weight"]
    for group in range(2):
        for channel in range(3):
            own = layer.weight[2 * group : 2 * group + 2, channel]
            drawn = step[2 * group : 2 * group + 2, channel]
            assert float(drawn.norm()) == pytest.approx(float(own.detach().norm()))


def test_a_network_without_weights_to_move_is_refused():
    model = nn.Sequential(nn.LayerNorm([4, 1]), nn.Flatten())
    with pytest.raises(sl.SpiritlevelError, match=r"must have a weight to move.*biases=True"):
        landscape(model, (torch.randn(5, 4, 1), torch.randn(5, 4)), loss="mse")


# -- what is refused, what is said, what stays -------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"directions": "up"}, "must be one of random, eigen, path. Got 'up'"),
        ({"directions": "path"}, "A path needs other networks"),
        ({"dimensions": 3}, "must be 1 .* or 2 .*Got 3"),
        ({"points": 1}, "must be at least 2.*Got 1"),
        ({"reach": 0.0}, "must be positive and finite.*Got 0.0"),
        ({"reach": math.nan}, "must be positive and finite"),
        ({"names": ["a", "b"]}, "one name for each network, 1 in all"),
        ({"to": 3.0}, "must be a network, a state dict"),
        ({"to": nn.Linear(3, 2).double(), "directions": "eigen"}, "A path needs other networks"),
        ({"to": nn.Linear(3, 2).double(), "dimensions": 2}, "needs 2 other networks.*Got 1"),
        ({"to": nn.Linear(3, 2).double(), "layers": "head"}, "must be left out on a path"),
        ({"to": nn.Linear(4, 2)}, r"'weight' in the shape \(2, 4\), needed is \(2, 3\)"),
        ({"to": nn.Linear(3, 2, bias=False)}, "has no 'bias'"),
        ({"to": [nn.Linear(3, 2)] * 3}, "one other network .* or two .* Got 3"),
        ({"to": {"weight": torch.full((2, 3), math.inf), "bias": torch.zeros(2)}}, "infinite"),
        ({"directions": "eigen", "dimensions": 2, "max_passes": 1}, "'max_passes' .* at least 2"),
    ],
)
def test_refusals_name_the_argument(options, text):
    problem = problems.linear_regression()
    with pytest.raises(sl.SpiritlevelError, match=text):
        landscape(problem.model, problem.data, loss="mse", **options)


def test_another_architecture_is_refused_with_what_it_has_more():
    problem = problems.linear_regression()
    extra = {**problem.model.state_dict(), "gate": torch.zeros(1)}
    with pytest.raises(sl.SpiritlevelError, match="has 'gate', which the model does not have"):
        landscape(problem.model, problem.data, loss="mse", to=extra)


def test_a_loss_without_a_value_at_the_network_is_refused():
    problem = problems.linear_regression()
    with torch.no_grad():
        problem.model.weight.mul_(1e200)  # finite outputs whose squares are not
    with pytest.raises(sl.SpiritlevelError, match="must be finite at the network's own weights"):
        landscape(problem.model, problem.data, loss="mse")


def test_batch_statistics_are_refused():
    data, _, _ = images()
    with pytest.raises(sl.SpiritlevelError, match="in train mode"):
        landscape(normalized(0).train(), data)


def test_running_statistics_are_spoken_of():
    data, _, _ = images()
    assert "keeps its running statistics" in landscape(normalized(0), data, points=3).text
    plain = problems.relu_convnet()
    assert "running statistics" not in landscape(plain.model, plain.data, points=3).text


class Restless(nn.Module):
    """Counts its calls in a buffer and draws random numbers, as no module should."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x + 0 * torch.rand(1, dtype=x.dtype)


@pytest.mark.parametrize("directions", ["random", "eigen", "path"])
def test_the_model_is_left_as_it_was(directions):
    model, other = (nn.Sequential(*normalized(seed), Restless()).eval() for seed in range(2))
    data, x, y = images()
    F.cross_entropy(model(x), y).backward()
    other[-1].calls.fill_(1)
    before, theirs = state(model), state(other)
    to = other if directions == "path" else None
    landscape(model, data, directions=directions, to=to, points=3)
    assert_same_state(model, before)
    assert_same_state(other, theirs)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_also_when_it_is_interrupted(error):
    model = nn.Sequential(*normalized(0), Restless()).eval()
    data, _, _ = images()
    before, calls = state(model), []

    def stop(module, inputs):
        calls.append(module)
        if len(calls) == 9:
            raise error("stop")

    handle = model[4].register_forward_pre_hook(stop)
    with pytest.raises(error, match="stop"):
        landscape(model, data)
    handle.remove()
    assert_same_state(model, before)


def test_chosen_layers_move_alone():
    problem = problems.relu_mlp()
    found = landscape(problem.model, problem.data, layers="4", points=3)
    step = directions.random_direction(
        Surface(problem.model, problem.data, layers="4"), seed=0, number=0, biases=False
    )
    assert list(step) == ["4.weight"]
    moved = copy.deepcopy(problem.model)
    with torch.no_grad():
        moved[4].weight += step["4.weight"]
    expected = F.cross_entropy(moved(problem.inputs()).detach(), problem.targets())
    assert found.at(1.0) == pytest.approx(float(expected), rel=1e-13)


def test_what_overflows_is_kept_and_said():
    problem = problems.relu_mlp(torch.float32)
    found = landscape(problem.model, problem.data, points=3, reach=1e30)
    low, here, high = found.losses
    assert math.isfinite(here)
    assert not math.isfinite(low)
    assert not math.isfinite(high)
    assert found.errors[0] == 1.0  # no output is no hit
    assert "At 2 of 3 points the loss is not finite" in found.text
    again = Landscape.from_json(found.to_json())
    assert [str(v) for v in again.losses] == [str(v) for v in found.losses]


def test_the_record_reloads():
    problem = problems.relu_mlp()
    found = landscape(problem.model, problem.data, directions="eigen", dimensions=2, points=3)
    assert Landscape.from_json(found.to_json()) == found
    with pytest.raises(sl.SpiritlevelError, match=r"Landscape\.from_json must be what"):
        Landscape.from_json('{"format": "spiritlevel-report-1"}')
    assert found.settings["num_samples"] == 8
    assert found.settings["loss"] == "cross_entropy"
    assert "8 samples" in str(found)


def test_progress_runs_to_the_end_once():
    problem = problems.relu_mlp()
    seen = []
    landscape(problem.model, problem.data, points=7, progress=lambda *at: seen.append(at))
    assert seen == sorted(seen)
    assert seen[-1] == (8 * 7, 8 * 7, "the loss on the slice")


@pytest.mark.parametrize(
    ("dimensions", "points", "path", "count"),
    [
        (1, None, False, 41),
        (2, None, False, 441),
        (1, None, True, 41),
        (2, None, True, 441),
        (1, 4, False, 5),
        (1, 4, True, 6),
        (2, 4, True, 36),
    ],
)
def test_the_passes_are_known_beforehand(dimensions, points, path, count):
    assert num_points(dimensions=dimensions, points=points, path=path) == count
