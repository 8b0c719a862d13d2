"""Losses and gradients at other weights against plain autograd on a changed copy of the model."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.engine.weight_space import perturbed as module
from spiritlevel.engine.weight_space.perturbed import (
    NoiseVectors,
    PerturbedLoss,
    WeightNoise,
    normal_numbers,
)
from spiritlevel.model.surface import Surface

pytestmark = pytest.mark.sampled(2)  # the others at night


def on(model, data, *, chunk=3, gradient_chunk=2, **options):
    return PerturbedLoss(
        Surface(model, data, **options), chunk=chunk, gradient_chunk=gradient_chunk
    )


def shifted(model, perturbed, seed=0):
    """A copy of the model with other weights, and these weights by name."""
    draw = torch.Generator().manual_seed(seed)
    moved = copy.deepcopy(model)
    point = {}
    with torch.no_grad():
        own = dict(moved.named_parameters())
        for name in perturbed.weights:
            noise = 0.1 * torch.randn(own[name].shape, generator=draw, dtype=torch.float64)
            own[name].add_(noise.to(own[name].dtype))
            point[name] = own[name].detach().clone()
    return moved, point


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def tied():
    problem = problems.softmax_regression()
    return Tied().double().eval(), problem.data


def plain():
    problem = problems.relu_mlp()
    return problem.model, problem.data


def frozen():
    model, data = plain()
    model[2].weight.requires_grad_(False)
    return model, data


def ignoring():
    model, data = plain()
    data = [(x, torch.where(torch.arange(len(y)) % 2 == 1, -100, y)) for x, y in data]
    return model, data


CASES = {
    "plain": (plain, {}),
    "frozen": (frozen, {}),
    "tied": (tied, {}),
    "ignored": (ignoring, {}),
    "layers": (plain, {"layers": ["2", "4"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_error_at_other_weights(case):
    make, options = CASES[case]
    model, data = make()
    perturbed = on(model, data, **options)
    moved, point = shifted(model, perturbed)
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    for network, at in ((model, {}), (moved, point)):
        names = [n for n, p in network.named_parameters() if n in perturbed.weights]
        leaves = [dict(network.named_parameters())[n] for n in names]
        loss = F.cross_entropy(network(x), y)
        expected = torch.autograd.grad(loss, leaves)
        loss, found = loss.detach(), perturbed.loss_and_gradient(at)
        assert found.loss == pytest.approx(float(loss), rel=1e-14)
        assert perturbed.losses([at]) == pytest.approx([float(loss)], rel=1e-14)
        for name, gradient in zip(names, expected, strict=True):
            torch.testing.assert_close(found.gradient[name], gradient, rtol=1e-12, atol=1e-15)
        counted = y != -100
        wrong = (network(x).argmax(dim=1) != y)[counted].double().mean()
        assert perturbed.errors([at]) == pytest.approx([float(wrong)], rel=1e-14)
    if case == "layers":
        assert set(point) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    if case == "frozen":
        assert "2.weight" not in point
    if case == "tied":
        assert "second.weight" not in point
        assert moved.second.weight is moved.first.weight


def test_loss_here_and_slope_here_are_worked_out_once():
    perturbed = on(*plain())
    assert perturbed.unperturbed.loss == pytest.approx(perturbed.unperturbed_loss, rel=1e-14)
    cost = perturbed.surface.cost
    assert (cost.forwards, cost.backwards) == (16, 8)
    _ = perturbed.unperturbed, perturbed.unperturbed_loss
    assert perturbed.surface.cost == cost


def test_several_points_share_a_pass_over_the_data():
    model, data = plain()
    perturbed = on(model, data)
    points = [shifted(model, perturbed, seed)[1] for seed in range(3)]
    passes = []
    perturbed.surface.progress = lambda done, total, what: passes.append(done)
    together = perturbed.losses(points)
    assert passes == [3, 4, 5, 8]  # once over the batches of 4, 1, 3, at most 3 samples at a time
    assert together == [perturbed.losses([point])[0] for point in points]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("gradient_chunk", [1, 2, 100])
def test_groups_do_not_depend_on_the_batches(cut, gradient_chunk):
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    data = list(zip(x.split(cut), y.split(cut), strict=True))
    perturbed = on(problem.model, data, gradient_chunk=gradient_chunk)
    groups = list(perturbed.parts(3))
    found = [torch.cat([batch[0] for _, batch in part]) for part in groups]
    assert [len(part) for part in found] == [3, 3, 2]
    assert torch.equal(torch.cat(found), x)
    assert all(len(batch[0]) <= gradient_chunk for part in groups for _, batch in part)
    if gradient_chunk == 100:
        assert [len(part) for part in groups] == [1, 1, 1]  # joined into one batch each
    slopes = [perturbed.part_loss_and_gradient({}, part) for part in groups]
    for part, slope in zip(found, slopes, strict=True):
        at = [i for i in range(8) for row in part if torch.equal(x[i], row)]
        loss = F.cross_entropy(problem.model(x[at]), y[at]).detach()
        assert slope.loss == pytest.approx(float(loss), rel=1e-13)
        assert slope.weight == len(part)


def test_samples_that_do_not_fit_together_stay_apart():
    data = [(torch.zeros(1, 2, 5), torch.zeros(1, 2)), (torch.zeros(1, 3, 5), torch.zeros(1, 3))]
    model = nn.Sequential(nn.Linear(5, 1), nn.Flatten(1))
    perturbed = on(model, data, gradient_chunk=10, loss="mse")
    ((first, second),) = perturbed.parts(4)
    assert [part[1][0].shape[1] for part in (first, second)] == [2, 3]


def test_a_part_in_which_nothing_counts_has_no_weight():
    x, y = torch.randn(4, 4).double(), torch.full((4,), -100)
    perturbed = on(problems.relu_mlp().model, [(x, y)])
    (part,) = perturbed.parts(4)
    assert perturbed.part_loss_and_gradient({}, part).weight == 0.0
    with pytest.raises(sl.SpiritlevelError, match="at least one target that counts"):
        perturbed.loss_and_gradient({})


# -- noise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("target", ["loss", "error"])
def test_a_draw_is_the_mean_over_the_noise_and_its_mirror_image(relative, target):
    model, data = plain()
    perturbed = on(model, data)
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])

    def score(network):
        if target == "loss":
            return float(F.cross_entropy(network(x), y).detach())
        return float((network(x).argmax(dim=1) != y).double().mean())

    found = WeightNoise(
        perturbed, NoiseVectors(perturbed.surface, seed=5), relative=relative
    ).rises(0.3, [0, 7], target)
    for value, draw in zip(found, [0, 7], strict=True):
        numbers = normal_numbers(perturbed.surface, 5, "noise", draw)
        total = -score(model)
        for sign in (1, -1):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for name, p in moved.named_parameters():
                    p.add_(sign * 0.3 * numbers[name] * (p.abs() if relative else 1.0))
            total += score(moved) / 2
        assert value == pytest.approx(total, rel=1e-12, abs=1e-15)


def test_draws_do_not_depend_on_how_many_are_made_together():
    perturbed = on(*plain())
    drawn = WeightNoise(perturbed, NoiseVectors(perturbed.surface, seed=0), relative=False)
    together = drawn.rises(0.1, range(5))
    drawn.together = 2
    assert drawn.rises(0.1, range(5)) == together


def test_noise_is_normal_and_differs_between_draws_purposes_and_seeds():
    surface = Surface(nn.Linear(300, 300), [(torch.zeros(1, 300), torch.zeros(1, 300))], loss="mse")
    numbers = normal_numbers(surface, 0, "noise", 0)["weight"]
    assert float(numbers.mean()) == pytest.approx(0.0, abs=5 / 300)  # 5 standard errors
    assert float(numbers.var()) == pytest.approx(1.0, abs=5 * 2**0.5 / 300)
    for other in ((0, "noise", 1), (0, "start", 0), (1, "noise", 0)):
        assert not torch.equal(normal_numbers(surface, *other)["weight"], numbers)
    assert torch.equal(normal_numbers(surface, 0, "noise", 0)["weight"], numbers)


def test_a_network_that_overflows_misses_its_targets():
    """Deep enough that noise a hundred times its weights leaves no finite output."""
    torch.manual_seed(0)
    layers = [layer for _ in range(24) for layer in (nn.Linear(4, 4), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(4, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    x, y = torch.rand(9, 4), torch.tensor([0, 1, 2] * 3)
    huge = {name: torch.full_like(p, 1e5) for name, p in model.named_parameters()}
    perturbed = on(model, [(x, y)])
    assert perturbed.errors([{}, huge])[1] == 1.0
    losses = perturbed.losses([{}, huge])
    assert losses[1] > 1e29 > losses[0]
    # labels at chance: nothing can rise
    found = sl.measure(model, (x, y), measures="pac_bayes.*", options={"draws": 4})
    for m in found.values():
        assert math.isfinite(m.value)
        assert m.text


def test_noise_is_drawn_once_for_all_levels_and_measures(monkeypatch):
    drawn = []
    real = module.normal_numbers

    def counted(*arguments):
        drawn.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(module, "normal_numbers", counted)
    model, data = plain()
    names = ["sharpness.average", "sharpness.adaptive_average", "pac_bayes.*"]
    sl.measure(model, data, measures=names, max_passes=80)
    assert len(drawn) == len(set(drawn)) >= 32
    kept, drawn[:] = list(drawn), []
    sl.measure(model, data, measures=names, max_passes=80, memory=1)  # none of them fits
    assert set(drawn) == set(kept)
    assert len(drawn) > len(kept)
