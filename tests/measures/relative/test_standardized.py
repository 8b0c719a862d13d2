"""κ after standardizing the features, against dense Hessians of networks standardized by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from measures.relative.standardized_by_hand import NAMES, inputs_of, scale_of, standardized_kappa
from spiritlevel import symmetries
from spiritlevel.measures.setup import Setup
from spiritlevel.testing import references
from spiritlevel.verbs import reference_problems as problems
from zoo.cases import CASES
from zoo.losses import LOSSES

# their weight is used past the module that owns it
REFUSED = {
    "tied_in_two_modules": "a",
    "embedding_tied_with_decoder": "embedding",
    "borrowed_weight": "a",
    "attention_batch_first": "attention.out_proj",
    "attention_sequence_first": "attention.out_proj",
    "transformer_block": "block.self_attn.out_proj",
    "transformer_block_sequence_first": "block.self_attn.out_proj",
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer_against_dense_matrices(name):
    case = CASES[name]
    model, batches = case.make()
    loss = LOSSES[case.loss]
    options = {"loss": loss.given, "measures": list(NAMES), "method": "exact"}
    if name in REFUSED:
        with pytest.raises(sl.SpiritlevelError, match=REFUSED[name]):
            sl.measure(model, batches, **options)
        return
    call = (lambda m, x: m(*x)) if isinstance(batches[0][0], tuple) else None
    truth = references.Truth(model, batches, loss.plain, call)
    rows = inputs_of(model, batches, call)
    report = sl.measure(model, batches, **options)
    for measure, power in NAMES.items():
        total = 0.0
        for layer, found in report.layers[measure].items():
            module = truth.model if layer == references.ROOT else model.get_submodule(layer)
            weight = "weight" if layer == references.ROOT else f"{layer}.weight"
            bends = layer in case.bends
            assert found.quantity == ("GGN" if bends else "Hessian")
            H = truth.matrix(found.quantity, [weight])
            expected = 0.0
            if layer in rows:
                v = scale_of(rows[layer], power)
                expected = standardized_kappa(H, module.weight, references.matrix_view(module), v)
            assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-13), (measure, layer)
            total += expected
        assert report[measure].value == pytest.approx(total, rel=1e-9, abs=1e-13)


# -- the same from a network written out by hand -------------------------------------------------


class Divided(nn.Module):
    """A layer with W V, that divides what goes in by V."""

    def __init__(self, layer, v):
        super().__init__()
        self.layer, shape = copy.deepcopy(layer), [1, -1] + [1] * (layer.weight.dim() - 2)
        self.v = v.reshape(shape)
        with torch.no_grad():
            self.layer.weight.mul_(self.v)

    def forward(self, a):
        return self.layer(a / self.v)


def tanh_net():
    problem = problems.relu_mlp()
    for i in (1, 3):
        problem.model[i] = nn.Tanh()
    return problem


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet, tanh_net])
@pytest.mark.usefixtures("only_probes")
def test_network_standardized_by_hand(make):
    problem = make()
    model = problem.model
    rows = inputs_of(model, problem.data)
    for measure, power in NAMES.items():
        made = nn.Sequential(
            *(
                Divided(m, scale_of(rows[str(i)], power) + (rows[str(i)] == 0).all(dim=0))
                if references.matrix_view(m)
                else m
                for i, m in enumerate(model)
            )
        )
        x, y = problem.inputs(), problem.targets()
        torch.testing.assert_close(made(x), model(x), rtol=1e-12, atol=1e-14)  # the same function
        with torch.no_grad():  # dead inputs: no weight, so that they take no part
            for i, m in enumerate(made):
                if isinstance(m, Divided):
                    m.layer.weight[:, (rows[str(i)] == 0).all(dim=0)] = 0
        truth = references.Truth(made, [(x, y)], F.cross_entropy)
        expected = 0.0
        for i, m in enumerate(made):
            if isinstance(m, Divided):
                H = truth.hessian([f"{i}.layer.weight"])
                view = references.matrix_view(m.layer)
                expected += references.kappa(H, m.layer.weight, view)
        found = sl.measure(model, problem.data, measures=measure)[measure]
        if make is tanh_net:  # by probes: 5 standard errors
            assert not found.exact
            assert abs(found.value - expected) <= 5 * found.stderr
        else:
            assert found.exact
            assert found.value == pytest.approx(expected, rel=1e-10)


# -- Theorem 4 of the paper, as printed and as meant ---------------------------------------------


@pytest.mark.parametrize("make", [problems.relu_mlp, problems.relu_convnet])
def test_theorem_holds_with_the_standard_deviation_and_not_with_the_variance(make):
    """Neuron j times α: its variance times α², its outgoing weights over α; WV then moves by α."""
    problem = make()
    model, generator = problem.model, torch.Generator().manual_seed(3)
    for producer, consumer in problem.pairs:
        width = len(model.get_submodule(producer).weight)
        factors = 5 + 20 * torch.rand(width, generator=generator, dtype=torch.float64)
        model = symmetries.rescale_neurons(model, producer, consumer, factors)
    before = sl.measure(problem.model, problem.data, measures=list(NAMES))
    after = sl.measure(model, problem.data, measures=list(NAMES))
    for layer, found in before.layers["relative.kappa_std"].items():
        now = after.layers["relative.kappa_std"][layer].value
        assert now == pytest.approx(found.value, rel=1e-12)
    name = "relative.kappa_var"
    assert abs(after[name].value / before[name].value - 1) > 0.02


def test_a_mean_far_from_zero_leaves_the_deviation_its_digits():
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    shift = torch.tensor([1e6, 0.0, 0.0, 0.0], dtype=torch.float64)
    moved = copy.deepcopy(problem.model)
    with torch.no_grad():
        moved[0].bias.sub_(moved[0].weight @ shift)
    rows = inputs_of(moved, [(x + shift, y)])["0"]
    expected = rows.numpy().std(axis=0)
    workspace = Setup().workspace(moved, [(x[:3] + shift, y[:3]), (x[3:] + shift, y[3:])])
    spreads, cost = workspace.features.spreads
    v = spreads["0"].scale(1)
    torch.testing.assert_close(
        v / v[1], torch.from_numpy(expected / expected[1]), rtol=1e-8, atol=0
    )
    assert cost.forwards == 8


# -- features that do not vary -------------------------------------------------------------------


def network_with(feature):
    """A column of the data that is constant."""
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    x[:, 2] = feature
    return problem.model, [(x[:5], y[:5]), (x[5:], y[5:])]


def test_a_constant_feature_is_divided_by_its_size_so_its_scale_cancels():
    model, data = network_with(0.7)
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled[0].weight[:, 2] /= 13.0
    _, more = network_with(0.7 * 13.0)
    for measure in NAMES:
        before = sl.measure(model, data, measures=measure)[measure]
        after = sl.measure(scaled, more, measures=measure)[measure]
        assert math.isfinite(before.value)
        if measure == "relative.kappa_std":
            assert after.value == pytest.approx(before.value, rel=1e-12)
        else:
            assert after.value != pytest.approx(before.value, rel=1e-3)


def test_a_constant_feature_is_noticed_through_round_off():
    model, data = network_with(0.1)  # not a binary fraction: its mean is not exactly itself
    single = copy.deepcopy(model).float()
    data32 = [(x.float(), y) for x, y in data]
    for measure in NAMES:
        double = sl.measure(model, data, measures=measure)[measure].value
        assert sl.measure(single, data32, measures=measure)[measure].value == pytest.approx(
            double, rel=1e-4
        )


def test_a_feature_that_is_always_zero_takes_no_part():
    model, data = network_with(0.0)
    narrow = copy.deepcopy(model)
    narrow[0] = nn.Linear(3, 6).double()
    with torch.no_grad():
        narrow[0].weight.copy_(model[0].weight[:, [0, 1, 3]])
        narrow[0].bias.copy_(model[0].bias)
    without = [(x[:, [0, 1, 3]], y) for x, y in data]
    for measure in NAMES:
        found = sl.measure(model, data, measures=measure)[measure].value
        expected = sl.measure(narrow, without, measures=measure)[measure].value
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=str)
def test_a_feature_without_digits_counts_as_zero(dtype, activation):
    """What weight decay leaves of a dead neuron, whose 1/V would be infinite."""
    blank, data = network_with(0.0)
    blank, data = blank.to(dtype), [(x.to(dtype), y) for x, y in data]
    blank[1] = blank[3] = activation
    tiny = [(x.clone(), y) for x, y in data]
    for x, _ in tiny:
        x[:, 2] = torch.finfo(dtype).tiny * torch.linspace(-1, 1, len(x), dtype=dtype)
    for measure in NAMES:
        found = sl.measure(blank, tiny, measures=measure)[measure]
        expected = sl.measure(blank, data, measures=measure)[measure]
        assert found.value == pytest.approx(expected.value, rel=1e-5)
        assert found.status is expected.status
