"""Precision on request: what is refused, what is reached, what is said where it is not."""

import functools
import re
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
import spiritlevel.measures.curvature.square_probes
from spiritlevel.engine.precision import Precision
from spiritlevel.engine.weight_space.probes import PILOT
from spiritlevel.testing import references
from zoo.plain import classes, network, random

PROBING = ["hutchinson", "hutch++", "split", "auto"]
TRACE = "curvature.trace"


def trace_of(model, x, y, loss=F.cross_entropy, names=None):
    truth = references.Truth(model, [(x, y)], loss)
    return float(truth.hessian(names or list(truth.parameters)).trace())


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("method", "magic", r"'method' argument must be one of auto, .*Got 'magic'.*'auto' picks"),
        ("method", None, r"'method' argument must be one of .*Got None"),
        ("rtol", 0.0, r"'rtol' argument must lie between 0 and 1\. Got 0\.0.*method='exact'"),
        ("rtol", -0.1, r"'rtol' argument must lie between 0 and 1\. Got -0\.1"),
        ("rtol", 1.0, r"'rtol' argument must lie between 0 and 1\. Got 1\.0"),
        ("rtol", float("nan"), r"'rtol' argument must lie between 0 and 1\. Got nan"),
        ("confidence", 0.0, r"'confidence' argument must lie between 0 and 1\. Got 0\.0.*0\.95"),
        ("confidence", 1.0, r"'confidence' argument must lie between 0 and 1\. Got 1\.0"),
        ("confidence", 95, r"'confidence' argument must lie between 0 and 1\. Got 95"),
        ("confidence", float("nan"), r"'confidence' argument must .*Got nan"),
        ("max_passes", 0, r"'max_passes' argument must be at least 1 .*Got 0\. Typical"),
        ("max_passes", -5, r"'max_passes' argument must be at least 1 .*Got -5"),
        ("max_passes", float("nan"), r"'max_passes' argument.* must .*Got nan"),
        ("max_passes", 30.5, r"'max_passes' argument.* must .*Got 30\.5"),
        ("max_passes", "10", r"'max_passes' argument.* must .*Got '10'"),
        ("rtol", "0.1", r"'rtol' argument.* must .*Got '0\.1'"),
    ],
)
def test_refused(argument, value, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        Precision(**{argument: value})
    with pytest.raises(sl.SpiritlevelError, match=text):
        sl.measure(network(), (random(3, 4), classes(3, 3)), measures=TRACE, **{argument: value})


# -- values that are zero or nearly so --------------------------------------------------------


def half_squares(outputs, targets):
    """½(z_0² − z_1²): its Hessian has as much below zero as above."""
    return (outputs[:, 0].square() - outputs[:, 1].square()) / 2


def linear(outputs, targets):
    return outputs.sum(dim=1)


@pytest.mark.parametrize("method", [*PROBING, "exact", "output_probes"])
def test_hessian_that_is_exactly_zero(method):
    model = nn.Linear(3, 2).double()
    data = (random(5, 3), random(5, 2))
    names = [TRACE, "relative.kappa", "neuron.rho_sum"]
    report = sl.measure(model, data, loss=linear, measures=names, method=method)
    for name in names:
        found = report[name]
        assert found.value == 0.0
        assert found.exact or found.stderr == 0.0  # probes say nothing else, but are no proof
        assert found.status is sl.results.Status.OK
    # five samples, three measures: no search for a precision that zero cannot have
    assert report.cost.products <= 5 * 3 * (3 * PILOT)


def test_squared_hessian_that_is_exactly_zero():
    model, data = nn.Linear(3, 2).double(), (random(5, 3), random(5, 2))
    found = sl.measure(model, data, loss=linear, measures="curvature.trace_squared")
    assert found["curvature.trace_squared"].value == 0.0
    assert found["curvature.trace_squared"].status is sl.results.Status.OK


@pytest.mark.parametrize("method", ["hutchinson", "split", "auto"])
def test_trace_that_cancels(method):
    """Positive and negative eigenvalues add up to nothing: no relative precision can be had."""
    net = network(nn.Softplus, (3, 4, 2))
    with torch.no_grad():  # both outputs are the same function, and the loss subtracts them
        net[2].weight[1] = net[2].weight[0]
        net[2].bias[1] = net[2].bias[0]
    x, y = random(6, 3), random(6, 2)
    assert abs(trace_of(net, x, y, lambda z, t: half_squares(z, t).mean())) < 1e-12
    report = sl.measure(
        net, (x, y), loss=half_squares, measures=TRACE, method=method, rtol=0.1, max_passes=40
    )
    found = report[TRACE]
    assert report.cost.products <= 6 * (40 + 16)
    if (found.stderr or 0.0) < 1e-12:  # nothing but round-off
        assert found.value == pytest.approx(0.0, abs=1e-12)
        return
    low, high = found.interval
    assert low < 0 < high
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert "contains 0" in found.text
    assert "max_passes" in found.text


def concave(outputs, targets):
    return -(outputs - targets).square().sum(dim=1)


@pytest.mark.parametrize("method", PROBING)
def test_negative_trace_is_reached_like_a_positive_one(method):
    net, x, y = network(sizes=(3, 4, 2)), random(6, 3), random(6, 2)
    truth = trace_of(net, x, y, lambda z, t: concave(z, t).mean())
    assert truth < 0
    report = sl.measure(
        net, (x, y), loss=concave, measures=TRACE, method=method, rtol=0.1, max_passes=3000
    )
    assert report[TRACE].status is sl.results.Status.OK
    assert report[TRACE].value == pytest.approx(truth, rel=0.2)  # twice the interval


@pytest.mark.parametrize("method", [*PROBING, "output_probes"])
def test_one_sample(method):
    net = network(nn.ReLU if method == "output_probes" else nn.Tanh)
    x, y = random(1, 4), classes(1, 3)
    found = sl.measure(net, (x, y), measures=TRACE, method=method, rtol=0.3, max_passes=3000)[TRACE]
    assert found.status is sl.results.Status.OK
    assert found.data_stderr is None  # one sample says nothing about the others
    if found.exact:  # Hutch++ has seen all of a matrix of low rank
        assert found.value == pytest.approx(trace_of(net, x, y), rel=1e-9)
    else:
        margin = (found.interval[1] - found.interval[0]) / 2
        assert abs(found.value - trace_of(net, x, y)) < 2 * margin


# -- the precision that is asked for ----------------------------------------------------------


@pytest.mark.usefixtures("only_probes")
@pytest.mark.parametrize("method", PROBING)
def test_interval_is_as_narrow_as_asked(method):
    net, data = network(), (random(8, 4), classes(8, 3))
    for rtol in (0.3, 0.1):
        found = sl.measure(
            net, data, measures=TRACE, method=method, rtol=rtol, max_passes=5000, seed=1
        )[TRACE]
        assert found.status is sl.results.Status.OK
        low, high = found.interval
        assert (high - low) / 2 <= rtol * abs(found.value) * (1 + 1e-9)
        assert low <= found.value <= high


def test_interval_grows_with_the_confidence():
    net, data = network(), (random(8, 4), classes(8, 3))
    widths = []
    for confidence in (0.5, 0.9, 0.99):
        options = {"method": "hutchinson", "rtol": 0.9, "max_passes": 16}
        found = sl.measure(net, data, measures=TRACE, confidence=confidence, **options)[TRACE]
        widths.append(found.interval[1] - found.interval[0])
    assert widths == sorted(widths)
    assert widths[0] < widths[1] < widths[2]


@pytest.mark.parametrize("method", [*PROBING, "output_probes"])
@pytest.mark.parametrize("max_passes", [1, 5, 20, 40])
@pytest.mark.usefixtures("only_probes")
def test_passes_are_not_exceeded(method, max_passes):
    """Every weight probe is one product with each sample, every output probe one backward."""
    n = 8
    net = network(nn.ReLU if method == "output_probes" else nn.Tanh)
    data = (random(n, 4), classes(n, 3))
    options = {"method": method, "rtol": 1e-4, "max_passes": max_passes}
    report = sl.measure(net, data, measures=TRACE, **options)
    assert report[TRACE].status is sl.results.Status.NOT_CONVERGED
    # an error bar needs two probes, and Hutch++ directions before them: the least that is possible
    least = {"hutch++": 6, "auto": 4, "output_probes": 5}.get(method, 2)
    assert report.cost.products <= n * max(max_passes, least)


def promised(text):
    (number,) = re.findall(r"max_passes=(\d+) would have sufficed", text)
    return int(number)


def test_ggn_trace_says_that_it_missed():
    net = network(nn.ReLU, (4, 5, 20))
    data = (random(8, 4), classes(8, 20))
    options = {"method": "output_probes", "rtol": 1e-3, "max_passes": 5}
    found = sl.measure(net, data, measures="curvature.ggn_trace", **options)["curvature.ggn_trace"]
    assert found.status is sl.results.Status.NOT_CONVERGED
    assert promised(found.text) > 5


# -- values that only look exact --------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 3])
def test_probes_that_agree_by_chance_are_not_exact(num_classes):
    """One sample counts among many that are ignored: two probes of it often agree."""
    net = network(nn.ReLU, (4, 5, num_classes))
    x, y = random(64, 4), torch.full((64,), -100)
    y[5] = 1
    truth = trace_of(net, x[5:6], y[5:6])
    for seed in range(12):
        found = sl.measure(
            net, (x, y), measures=TRACE, method="output_probes", rtol=0.5, seed=seed
        )[TRACE]
        if found.exact or found.interval is None:
            assert found.value == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_error_is_not_below_round_off(dtype):
    """Hutch++ knows a small matrix whole: what is left of it is round-off, and so is its spread."""
    net, x, y = network(sizes=(2, 2, 3)), random(6, 2), classes(6, 3)
    truth = references.Truth(net, [(x, y)], F.cross_entropy)
    total = 0.0
    for layer in ("0", "2"):
        module = net.get_submodule(layer)
        view = references.matrix_view(module)
        total += sum(references.rho(truth.hessian([f"{layer}.weight"]), module.weight, view))
    net, x = net.to(dtype), x.to(dtype)
    found = sl.measure(net, (x, y), measures="neuron.rho_sum", method="hutch++")["neuron.rho_sum"]
    round_off = 100 * torch.finfo(dtype).eps * abs(total)
    assert found.value == pytest.approx(total, abs=round_off)
    if not found.exact:
        assert found.interval[0] - round_off <= total <= found.interval[1] + round_off
        assert found.stderr >= torch.finfo(dtype).eps * abs(total) / 100


# -- the two errors ---------------------------------------------------------------------------


def test_probe_error_and_data_error_are_two_numbers():
    """More probes make one of them small and leave the other."""
    net, data = network(), (random(32, 4), classes(32, 3))
    found = [
        sl.measure(net, data, measures=TRACE, method="hutchinson", rtol=rtol, max_passes=5000)
        for rtol in (0.5, 0.05)
    ]
    loose, tight = (report[TRACE] for report in found)
    assert tight.stderr < loose.stderr / 3
    assert tight.data_stderr == pytest.approx(loose.data_stderr, rel=1e-9)


def other_data(activation, seed):
    x = random(64, 4, seed=seed) * (0.5 + random(64, 1, seed=1000 + seed).abs())
    return x, network(activation, seed=5)(x).argmax(dim=1)


@functools.cache
def spread_of_the_trace(activation):
    """Over data sets drawn anew."""
    net = network(activation)
    return statistics.stdev(trace_of(net, *other_data(activation, seed)) for seed in range(40))


@pytest.mark.parametrize("method", [*PROBING, "exact", "output_probes"])
def test_data_error_is_that_of_other_data(method):
    """Against the spread of the true value, within a factor."""
    activation = nn.ReLU if method in ("exact", "output_probes") else nn.Tanh
    net, spread = network(activation), spread_of_the_trace(activation)
    options = {"measures": TRACE, "method": method, "rtol": 0.3, "max_passes": 500}
    claims = [
        sl.measure(net, other_data(activation, seed), seed=seed, **options)[TRACE].data_stderr
        for seed in range(5)
    ]
    claim = statistics.fmean(claims)
    # 40 draws know a standard deviation to 11 %, 16 parts of the data to 18 %
    assert spread / 1.6 < claim < 1.6 * spread


SQUARE = "curvature.trace_squared"


@pytest.mark.parametrize("folded", [1024, 16], ids=["all entries", "folded"])
def test_data_error_of_the_square(folded, monkeypatch):
    """2⟨H, H_c⟩ of 16 parts of the data, from their dense Hessians: Tr H² changes by 2⟨H, dH⟩."""
    monkeypatch.setattr(spiritlevel.measures.curvature.square_probes, "FOLDED", folded)
    net, x, y = network(), random(64, 4) * (0.5 + random(64, 1, seed=1).abs()), classes(64, 3)
    truth = references.Truth(net, [(x, y)], F.cross_entropy)
    H = truth.hessian(list(truth.parameters))
    products = []
    for part in range(0, 64, 4):
        own = references.Truth(net, [(x[part : part + 4], y[part : part + 4])], F.cross_entropy)
        products.append(float((own.hessian(list(own.parameters)) * H).sum()))
    expected = 2 * statistics.stdev(products) / 4
    claims = [
        sl.measure(net, (x, y), measures=SQUARE, max_passes=PILOT, seed=seed)[SQUARE].data_stderr
        for seed in range(8)
    ]
    assert statistics.fmean(claims) == pytest.approx(expected, rel=0.25)


def test_data_error_of_the_square_is_that_of_other_data():
    """Against the spread of the true value over data sets drawn anew."""
    net, n, truths, claims = network(), 128, [], []
    for seed in range(40):
        x = random(n, 4, seed=seed) * (0.5 + random(n, 1, seed=1000 + seed).abs())
        data = (x, network(seed=5)(x).argmax(dim=1))
        truth = references.Truth(net, [data], F.cross_entropy)
        truths.append(float(truth.hessian(list(truth.parameters)).square().sum()))
        if seed < 8:
            found = sl.measure(net, data, measures=SQUARE, max_passes=PILOT, seed=seed)[SQUARE]
            claims.append(found.data_stderr)
    spread = statistics.stdev(truths)
    assert spread / 1.6 < statistics.fmean(claims) < 1.6 * spread


# -- parts of a network -----------------------------------------------------------------------


@pytest.mark.parametrize("method", PROBING)
def test_restricted_to_a_layer(method):
    net, x, y = network(), random(8, 4), classes(8, 3)
    names = ["0.weight", "0.bias"]
    report = sl.measure(
        net, (x, y), measures=TRACE, layers="0", method=method, rtol=0.05, max_passes=5000
    )
    found = report[TRACE]
    truth = trace_of(net, x, y, names=names)
    assert found.value == pytest.approx(truth, rel=0.1)  # twice the interval
    assert set(report.layers[TRACE]) == {"0"}


@pytest.mark.parametrize("method", [*PROBING, "output_probes"])
def test_neither_memory_nor_batches_change_the_value(method):
    net = network(nn.ReLU if method == "output_probes" else nn.Tanh)
    x, y = random(9, 4), classes(9, 3)
    cuts = [[(x, y)], [(x[:4], y[:4]), (x[4:5], y[4:5]), (x[5:], y[5:])]]
    names = [TRACE, "relative.kappa", "neuron.rho_sum"]
    values = []
    for memory in (None, 1):  # one byte: one sample at a time
        for data in cuts:
            options = {"method": method, "max_passes": 20, "memory": memory, "seed": 3}
            report = sl.measure(net, data, measures=names, **options)
            values.append([report[name].value for name in names])
    assert values[1] == pytest.approx(values[0], rel=1e-10)
    assert values[3] == pytest.approx(values[2], rel=1e-10)
    if method != "hutch++":  # takes out as many directions as the memory holds
        assert values[2] == pytest.approx(values[0], rel=1e-10)


@pytest.mark.parametrize("method", [*PROBING, "output_probes"])
@pytest.mark.usefixtures("only_probes")
def test_same_seed_same_value_and_another_seed_another(method):
    net = network(nn.ReLU if method == "output_probes" else nn.Tanh)
    data = (random(9, 4), classes(9, 3))

    def value(seed):
        options = {"method": method, "rtol": 0.3, "seed": seed}
        return sl.measure(net, data, measures=TRACE, **options)[TRACE].value

    torch.manual_seed(1)
    first = value(7)
    torch.manual_seed(2)  # the global generator has no say
    assert value(7) == first
    assert value(8) != first
