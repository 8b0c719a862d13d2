"""Random signs of single elements give the residual of networks that elementwise functions bend."""

import contextlib
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.data_pass import NEEDS
from spiritlevel.engine.element_probes import ElementProbes
from spiritlevel.engine.sweep.sums import RowSums, SweepSums
from spiritlevel.ground.errors import NotApplicable
from spiritlevel.measures.setup import Setup
from spiritlevel.testing import references
from zoo import plain

KINDS = ["trace", "kappa", "rho"]
SEEDS = 100


class Blocks(nn.Module):
    """Convolutions with a residual sum, positions, and an activation that is used twice."""

    def __init__(self):
        super().__init__()
        self.stem, self.inner = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.mixed, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = F.silu(self.stem(x))
        h = torch.tanh(h + self.inner(h)).flatten(2).transpose(1, 2)
        return self.head(F.silu(self.mixed(h)).mean(dim=1))


def layers(activation):
    return nn.Sequential(
        *(nn.Linear(3, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 3))
    )


PROBLEMS = {
    "tanh": (lambda: layers(nn.Tanh()), (12, 3)),
    "gelu": (lambda: layers(nn.GELU()), (12, 3)),
    "blocks": (Blocks, (6, 2, 3, 3)),
}


def made(name, generator):
    build, shape = PROBLEMS[name]
    model, x = plain.drawn(build(), generator), plain.normal(*shape, generator=generator)
    y = torch.randint(3, shape[:1], generator=generator)
    return model, [(x[:4], y[:4]), (x[4:], y[4:])]


@contextlib.contextmanager
def probing(model, data, kind, **options):
    """Probes of all rows of a kind that bend."""
    workspace = Setup(**options).workspace(model, data)
    workspace.want(NEEDS[kind])
    with workspace.surface.preserved():
        bent = workspace.plan.bent
        of = workspace.surface.layers.weight_of if kind != "trace" else str
        rows = workspace.surface.parameters if kind == "trace" else workspace.surface.matrices
        yield ElementProbes(workspace, kind, [row for row in rows if of(row) in bent])


def residuals(model, data, kind):
    """The rows of H − GGN, from dense matrices."""
    truth, found = references.Truth(model, data, F.cross_entropy), {}
    if kind == "trace":
        for name in truth.parameters:
            found[name] = float((truth.hessian([name]) - truth.ggn([name])).trace())
        return found
    for layer, (name, view) in references.matrices(model).items():
        R, weight = truth.hessian([name]) - truth.ggn([name]), truth.parameters[name]
        of = references.kappa if kind == "kappa" else lambda *each: sum(references.rho(*each))
        found[layer] = float(of(R, weight, view))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_their_mean_is_the_dense_residual(name, kind, generator):
    model, data = made(name, generator)
    expected = residuals(model, data, kind)
    with probing(model, data, kind) as probes:
        probes.draw(["residual"], 24)
        for row in probes._drawn._names:
            found, scale = probes.estimate("residual", {row: 1.0}), max(map(abs, expected.values()))
            gap = abs(found.value - expected[row])
            assert gap < 4 * found.stderr + 1e-12 * scale, (row, found, expected[row])
        if kind == "rho":
            neurons = probes.neurons("residual", row)
            assert sum(each.value for each in neurons) == pytest.approx(found.value, rel=1e-10)


def test_the_layer_before_an_activation_is_left_nothing_to_chance(generator):
    model, data = made("tanh", generator)
    expected = residuals(model, data, "trace")
    with probing(model, data, "trace") as probes:
        probes.draw(["residual"], 4)
        found = probes.estimate("residual", {"2.weight": 1.0})
    assert found.value == pytest.approx(expected["2.weight"], rel=1e-12)
    assert found.stderr < 1e-12 * abs(found.value)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_intervals_hold_the_dense_value(name, kind, generator, monkeypatch):
    model, parts = made(name, generator)
    x, y = (torch.cat(each) for each in zip(*parts, strict=True))
    data, count = [(x, y)], 4
    if name == "gelu":
        model = plain.after_training(model, x, y, 100)
    truth, drawn = sum(residuals(model, data, kind).values()), []
    keep = SweepSums.add

    def keeping(sums, draws, weights):
        if sums.num_probes is not None:
            drawn.append(([draw.rows[kind] for draw in draws], weights))
        keep(sums, draws, weights)

    with probing(model, data, kind) as probes:
        monkeypatch.setattr(SweepSums, "add", keeping)
        probes.draw(["residual"], SEEDS * count)
        rows = probes.surface.parameters if kind == "trace" else probes.surface.matrices
    held, values, factors = 0, [], dict.fromkeys(probes._drawn._names, 1.0)
    for seed in range(SEEDS):
        sums = RowSums(rows, torch.device("cpu"), signed=True)
        for draws, weights in drawn:
            sums.add(draws[seed * count : (seed + 1) * count], weights)
        found = sums.estimate(factors, count)
        held += abs(found.value - truth) <= found.half_width(0.95)
        values.append(found.value)
    assert held >= 0.89 * SEEDS
    assert abs(statistics.mean(values) - truth) < 4 * statistics.stdev(values) / SEEDS**0.5


def test_a_sample_has_its_own_signs_however_the_data_is_divided(generator):
    model, data = made("tanh", generator)
    x, y = (torch.cat(each) for each in zip(*data, strict=True))
    found = []
    for each in (data, [(x, y)], [(x.repeat(2, 1), y.repeat(2))]):
        with probing(model, each, "trace") as probes:
            probes.draw(["residual"], 4)
            found.append(probes.estimate("residual", {"0.weight": 1.0}))
    assert found[2].value != pytest.approx(
        found[0].value, rel=1e-6
    )  # the same samples, other signs
    assert found[0].value == pytest.approx(found[1].value, rel=1e-12)
    assert found[0].stderr == pytest.approx(found[1].stderr, rel=1e-10)


# -- when they are taken ---------------------------------------------------------------------------


def wide(generator, *more):
    layers = [nn.Linear(128, 200), nn.GELU(), *more, nn.Linear(200, 3)]
    model = plain.drawn(nn.Sequential(*layers), generator)
    return model, (plain.normal(32, 128, generator=generator), torch.arange(32) % 3)


def test_they_are_taken_where_columns_are_too_many(generator):
    model, data = wide(generator)
    found = sl.measure(model, data, measures="curvature.trace", rtol=0.005)["curvature.trace"]
    assert "4 probes of elementwise functions of the residual H − GGN" in found.text
    assert "less variance in these than in other probes of the same cost" in found.text
    exact = sl.measure(model, data, measures="curvature.trace", method="exact")["curvature.trace"]
    assert exact.exact
    assert not found.exact
    assert found.interval[0] <= exact.value <= found.interval[1]
    others = sl.measure(
        model, data, measures="curvature.trace", rtol=0.005, method="sample_probes"
    )["curvature.trace"]
    assert others.cost.forward_backwards > found.cost.forward_backwards


def test_they_are_not_taken_where_more_bends(generator):
    model, data = wide(generator, nn.LayerNorm(200))
    found = sl.measure(model, data, measures="curvature.trace", rtol=0.005)["curvature.trace"]
    assert "elementwise" not in found.text


class MixedLater(nn.Module):
    """A softmax takes the place of tanh for inputs above a threshold."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        return self.head(h.softmax(dim=1) if bool(x.max() > 50) else torch.tanh(h))


def test_later_data_that_bend_otherwise_are_noticed(generator):
    _, data = made("tanh", generator)
    data[1][0][:, 0] += 100.0
    with (
        probing(plain.drawn(MixedLater(), generator), data, "trace") as probes,
        pytest.raises(NotApplicable, match="also bends the outputs through"),
    ):
        probes.draw(["residual"], 4)
