"""Predicted rises against dense Hessians and real losses; plans against all possible plans."""

import copy
import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from spiritlevel.analysis.quantization import Rounding
from spiritlevel.results import Quantization
from spiritlevel.testing import references

pytestmark = pytest.mark.sampled(2)  # the others at night


def network(activation=nn.ReLU, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3),
            activation(),
            nn.Flatten(),
            nn.Linear(12, 5),
            activation(),
            nn.Linear(5, 3),
        )
        x, y = torch.randn(20, 1, 4, 4), torch.randint(0, 3, (20,))
    return model.to(dtype).eval(), (x.to(dtype), y)


@pytest.fixture(scope="module")
def measured():
    model, data = network()
    return model, data, sl.quantization(model, data, bits=(2, 3, 4), traces=True, mean_bits=3.0)


@pytest.mark.parametrize("outputs", [3, 200])
def test_a_faster_arithmetic_is_used_and_not_called_exact(outputs):
    """With few outputs by columns, with many by second backwards."""
    model, (x, y) = network(dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model[-1] = nn.Linear(5, outputs)
    asked = {"bits": (3,), "check": False}
    plain = sl.quantization(model, (x, y), **asked)
    fast = sl.quantization(model, (x, y), **asked, arithmetic="bf16")
    assert plain.settings["arithmetic"] == "full"
    assert fast.settings["arithmetic"] == "bf16"
    assert not any(width.exact for width in fast.widths)
    for a, b in zip(plain.widths, fast.widths, strict=True):
        assert a.second != b.second
        # eight bits of a number, and a ReLU that switches; the signs are the same
        assert b.second == pytest.approx(a.second, rel=0.1)


# -- rounding --------------------------------------------------------------------------------


def naive(row, bits, ranges):
    levels = 2 ** (bits - 1) - 1
    best, least = None, np.inf
    for i in range(1 if ranges == "max" else 15):
        scale = (1 - 0.05 * i) * max(map(abs, row)) / levels
        tried = [scale * max(-levels, min(levels, round(v / scale))) for v in row]
        error = sum((a - b) ** 2 for a, b in zip(tried, row, strict=True))
        if error < least:
            best, least = tried, error
    return best


@pytest.mark.parametrize("bits", [2, 3, 8])
@pytest.mark.parametrize("ranges", ["mse", "max"])
@pytest.mark.parametrize("scheme", ["per_tensor", "per_channel", "per_group"])
def test_rounding_is_that_of_plain_python(scheme, ranges, bits, generator):
    weight = torch.randn(3, 2, 5, generator=generator, dtype=torch.float64)
    rounding = Rounding(scheme, 4, ranges)
    found = rounding.round(weight, bits)
    if scheme == "per_tensor":
        expected = naive(weight.flatten().tolist(), bits, ranges)
    elif scheme == "per_channel":
        rows = weight.flatten(1).tolist()
        expected = [v for row in rows for v in naive(row, bits, ranges)]
    else:
        rows = weight.flatten(1).tolist()
        parts = [row[i : i + 4] for row in rows for i in range(0, 10, 4)]
        expected = [v for part in parts for v in naive(part, bits, ranges)]
    torch.testing.assert_close(
        found.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    scales = {"per_tensor": 1, "per_channel": 3, "per_group": 9}[scheme]
    assert rounding.num_bytes(weight.shape, bits) == -(-30 * bits // 8) + 2 * scales
    flipped = rounding.round(weight.movedim(0, -1), bits, transposed=True)
    if scheme != "per_tensor":
        torch.testing.assert_close(flipped.movedim(-1, 0), found, rtol=0, atol=0)


def test_a_row_of_zeros_stays():
    weight = torch.zeros(2, 3)
    assert torch.equal(Rounding().round(weight, 2), weight)


# -- predicted rises -------------------------------------------------------------------------


def dense_rise(model, data, name, change):
    truth = references.Truth(model, [data], F.cross_entropy)
    parameter = dict(model.named_parameters())[name]
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(data[0]), data[1]), [parameter])
    flat = change.flatten()
    return flat @ gradient.flatten(), flat @ truth.hessian([name]) @ flat


@pytest.mark.parametrize("scheme", ["per_channel", "per_tensor", "per_group"])
def test_rises_are_those_of_the_dense_hessian(scheme):
    model, data = network()
    found = sl.quantization(model, data, bits=(2, 4), scheme=scheme, group_size=4, check=False)
    assert set(found.sizes) == {"0.weight", "3.weight", "5.weight"}
    for width in found.widths:
        weight = dict(model.named_parameters())[width.weight].detach()
        change = Rounding(scheme, 4).round(weight, width.bits) - weight
        first, second = dense_rise(model, data, width.weight, change)
        assert width.exact
        assert width.first == pytest.approx(float(first), rel=1e-9, abs=1e-12)
        assert width.second == pytest.approx(float(second), rel=1e-9, abs=1e-12)
        assert width.rise == pytest.approx(float(first + second / 2), rel=1e-8, abs=1e-12)
        assert width.error == pytest.approx(float(change.square().sum()), rel=1e-12)
        assert width.stderr == 0.0


def test_where_the_outputs_bend_it_is_the_hessian_with_an_error():
    model, data = network(nn.Tanh)
    found = sl.quantization(model, data, bits=(2, 3), check=False, num_probes=60)
    gaps, differs = [], False
    for width in found.widths:
        weight = dict(model.named_parameters())[width.weight].detach()
        change = Rounding().round(weight, width.bits) - weight
        first, second = dense_rise(model, data, width.weight, change)
        assert width.first == pytest.approx(float(first), rel=1e-9, abs=1e-12)
        assert width.exact == (width.weight == "5.weight")
        if width.exact:
            assert width.second == pytest.approx(float(second), rel=1e-9)
        else:
            gaps.append((width.rise - float(first + second / 2)) / width.stderr)
            truth = references.Truth(model, [data], F.cross_entropy)
            ggn = change.flatten() @ truth.ggn([width.weight]) @ change.flatten()
            differs |= abs(float(ggn - second)) / 2 > 5 * width.stderr
    assert max(map(abs, gaps)) < 4.0
    assert differs  # the GGN would have been wrong
    one = sl.quantization(model, data, bits=(2,), layers="3", check=False)
    assert one.widths[0].exact  # a single weight needs no random signs
    change = Rounding().round(model[3].weight.detach(), 2) - model[3].weight.detach()
    second = dense_rise(model, data, "3.weight", change)[1]
    assert one.widths[0].second == pytest.approx(float(second), rel=1e-9)


def test_many_outputs_take_second_backwards(monkeypatch):
    monkeypatch.setattr("spiritlevel.analysis.quantization.measuring.MOST_COLUMNS", 1)
    model, data = network()
    found = sl.quantization(model, data, bits=(2, 3), check=False, num_probes=60)
    for width in found.widths:
        weight = dict(model.named_parameters())[width.weight].detach()
        first, second = dense_rise(
            model, data, width.weight, Rounding().round(weight, width.bits) - weight
        )
        assert not width.exact
        assert abs(width.rise - float(first + second / 2)) < 4 * width.stderr
    assert found.uniform(2).joint_rise is None


def test_the_rise_of_a_plan_has_its_terms_between_weights(measured):
    model, data, found = measured
    plan = found.of_bits({"0.weight": 2, "3.weight": 4, "5.weight": 3})
    truth = references.Truth(model, [data], F.cross_entropy)
    names = list(found.sizes)
    parameters = dict(model.named_parameters())
    changes = [
        (found.round(n, parameters[n].detach(), plan.bits[n]) - parameters[n].detach()).flatten()
        for n in names
    ]
    flat, ggn = torch.cat(changes), truth.ggn(names)
    loss = F.cross_entropy(model(data[0]), data[1])
    gradient = torch.autograd.grad(loss, [parameters[n] for n in names])
    slope = flat @ torch.cat([g.flatten() for g in gradient])
    assert plan.joint_rise == pytest.approx(float(slope + flat @ ggn @ flat / 2), rel=1e-8)


def test_measured_rises_are_those_of_the_rounded_network(measured):
    model, data, found = measured
    before = copy.deepcopy(model.state_dict())
    for plan in [found.chosen, *found.frontier, *found.uniforms]:
        rounded = found.apply(model, plan)
        rise = F.cross_entropy(rounded(data[0]), data[1]) - F.cross_entropy(model(data[0]), data[1])
        assert plan.measured_rise == pytest.approx(float(rise.detach()), abs=1e-12)
        wrong = (rounded(data[0]).argmax(dim=1) != data[1]).double().mean()
        assert plan.measured_error == pytest.approx(float(wrong))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_small_errors_are_predicted_well():
    """The remainder of the expansion falls faster than the second-order term."""
    model, data = network()
    found = sl.quantization(model, data, bits=(8, 10))
    ten = found.uniform(10)
    measured = next(p for p in found.uniforms if p.mean_bits == 10).measured_rise
    assert abs(ten.joint_rise - measured) < 1e-3 * abs(measured)


# -- plans -----------------------------------------------------------------------------------


def all_plans(found):
    for choice in itertools.product(found.options, repeat=len(found.sizes)):
        yield found.of_bits(dict(zip(found.sizes, choice, strict=True)))


@pytest.mark.parametrize("by", ["curvature", "joint", "rise", "trace", "error"])
def test_no_other_plan_is_better(measured, by):
    found = measured[2]
    value = {
        "rise": lambda plan: plan.rise,
        "curvature": lambda plan: sum(found.of(n, b).second / 2 for n, b in plan.bits.items()),
        "joint": lambda plan: (
            plan.joint_rise - sum(found.of(n, b).first for n, b in plan.bits.items())
        ),
        "trace": lambda plan: sum(
            found.traces[n] / found.sizes[n] * found.of(n, b).error for n, b in plan.bits.items()
        ),
        "error": lambda plan: sum(found.of(n, b).error for n, b in plan.bits.items()),
    }[by]
    for budget in (2.0, 2.4, 3.1, 3.7):
        plan = found.plan(mean_bits=budget, by=by)
        fitting = [p for p in all_plans(found) if p.mean_bits <= budget + 1e-9]
        assert plan.mean_bits <= budget + 1e-9
        assert value(plan) == pytest.approx(min(map(value, fitting)), rel=1e-6, abs=1e-12)
    size = found.uniform(3).bytes
    plan = found.plan(bytes=size, by=by)
    fitting = [p for p in all_plans(found) if p.bytes <= size]
    assert value(plan) == pytest.approx(min(map(value, fitting)), rel=1e-6, abs=1e-12)


def test_traces_are_those_of_measure(measured):
    model, data, found = measured
    truth = references.Truth(model, [data], F.cross_entropy)
    for name, trace in found.traces.items():
        assert trace == pytest.approx(float(truth.hessian([name]).trace()), rel=1e-9)


@pytest.mark.nightly
def test_the_error_of_a_plan_is_that_of_its_sum(measured):
    """Against the spread of the rises over samples, each with a Hessian of its own."""
    model, (x, y), found = measured
    plan = found.uniform(2)
    rises = []
    for n in range(len(x)):
        one = (x[n : n + 1], y[n : n + 1])
        rise = 0.0
        for name in found.sizes:
            weight = dict(model.named_parameters())[name].detach()
            first, second = dense_rise(model, one, name, found.round(name, weight, 2) - weight)
            rise += float(first + second / 2)
        rises.append(rise)
    expected = float(np.std(rises, ddof=1) / np.sqrt(len(rises)))
    assert plan.data_stderr == pytest.approx(expected, rel=1e-8)
    assert plan.rise == pytest.approx(float(np.mean(rises)), rel=1e-8)


def test_a_file_gives_the_same_plans(measured):
    found = measured[2]
    again = Quantization.from_json(found.to_json())
    assert again.plan(mean_bits=2.7).bits == found.plan(mean_bits=2.7).bits
    assert again.chosen == found.chosen
    assert again.frontier == found.frontier
    assert str(again) == str(found)
    assert json.loads(found.to_json())["rounding"]["scheme"] == "per_channel"


def test_half_precision_and_transposed_weights_work():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Parameter(torch.randn(4, 6)), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(torch.relu(x @ self.first))

    torch.manual_seed(0)
    model, x, y = Product().double(), torch.randn(9, 4).double(), torch.randint(0, 3, (9,))
    found = sl.quantization(model, (x, y), bits=(3,), check=False)
    assert found.transposed == ["first"]
    change = Rounding().round(model.first.detach().T, 3).T - model.first.detach()
    second = dense_rise(model, (x, y), "first", change)[1]
    assert found.of("first", 3).second == pytest.approx(float(second), rel=1e-9)
    half = sl.quantization(model.bfloat16(), (x.bfloat16(), y), bits=(3,), check=False)
    assert half.of("first", 3).second == pytest.approx(found.of("first", 3).second, rel=0.1)


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"scheme": "per_chanel"}, r"per_tensor, per_channel, per_group\. Got 'per_chanel'\. Did"),
        ({"ranges": "all"}, r"one of mse, max\. Got 'all'"),
        ({"bits": (1, 4)}, r"from 2 to 16.*Got \(1, 4\)"),
        ({"bits": ()}, r"at least one\. Got \(\)"),
        ({"bits": 4}, r"Got 4\. Typical"),
        ({"scheme": "per_group", "group_size": 0}, r"at least 1, below 2\*\*63\. Got 0"),
        ({"mean_bits": 1.5}, r"'mean_bits' must be at least 2.*Got 1\.5\. Raise it"),
        ({"bytes": 10}, r"'bytes' must be at least \d+.*Got 10\. Raise it"),
        ({"mean_bits": 4.0, "bytes": 10}, r"one budget.*Got both"),
        ({"mean_bits": -4.0}, r"positive number\. Got -4"),
        ({"num_probes": 1}, r"at least 2.*Got 1\."),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments, match):
    model, data = network()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(sl.SpiritlevelError, match=match):
        sl.quantization(model, data, **arguments)
    assert len(calls) <= 8  # a look at the network, never at the data


def test_plans_refuse_what_cannot_be(measured):
    found = measured[2]
    for arguments, match in (
        ({}, "Got neither"),
        ({"mean_bits": 1.0}, "at least 2"),
        ({"bytes": 3}, "'bytes' must be at least"),
        ({"mean_bits": 3, "by": "rice"}, r"Got 'rice'\. Did you mean 'rise'"),
    ):
        with pytest.raises(sl.SpiritlevelError, match=match):
            found.plan(**arguments)
    with pytest.raises(sl.SpiritlevelError, match="traces=True"):
        Quantization.from_json(found.to_json()).__class__(
            **{**vars(found), "traces": {}}
        ).plan(mean_bits=3, by="trace")  # fmt: skip
    with pytest.raises(sl.SpiritlevelError, match="is missing"):
        found.of_bits({"0.weight": 2})
    with pytest.raises(sl.SpiritlevelError, match="no weight 'x' at 3 bits"):
        found.of("x", 3)
    with pytest.raises(sl.SpiritlevelError, match="must be the network that was measured"):
        found.apply(nn.Linear(2, 2), found.chosen)
    with pytest.raises(sl.SpiritlevelError, match="not in a file"):
        Quantization.from_json(found.to_json()).plan(mean_bits=3, by="joint")
