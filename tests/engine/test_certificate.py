"""What is called exact is the Hessian's value; what is not is the GGN's by name, or estimated."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references
from zoo import wirings


def seeded(build, seed=1):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().double().eval()


@pytest.fixture
def data(generator):
    x = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    return [(x[:4], torch.tensor([0, 1, 2, 0])), (x[4:], torch.tensor([1, 2, 2]))]


def activated(activation):
    return lambda: nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 3))


def measured(model, data, **options):
    """By the sweep alone: what is not certified is then the GGN's."""
    return sl.measure(model, data, measures="curvature.trace", method="exact", **options)


def dense(model, data):
    """Traces of the dense Hessian and GGN of the whole network."""
    truth = references.Truth(model, data, F.cross_entropy)
    names = list(truth.parameters)
    return float(truth.hessian(names).trace()), float(truth.ggn(names).trace())


@pytest.mark.parametrize("activation", [nn.Softmax(1), nn.Softmin(1), nn.LayerNorm(5)], ids=str)
def test_a_network_whose_bends_mix_elements_is_not_certified_and_gives_the_ggn(activation, data):
    model = seeded(activated(activation))
    found = measured(model, data)["curvature.trace"]
    hessian, ggn = dense(model, data)
    assert not found.exact
    assert found.status is sl.results.Status.GGN
    assert "not certified for '0.weight' and 1 more, the outputs bend along it" in found.text
    assert "For the Hessian's value use method='auto'" in found.text
    assert found.value == pytest.approx(ggn, rel=1e-9)
    assert abs(hessian - ggn) > 1e-3 * abs(hessian)  # the label matters: the two do differ
    assert found.value != pytest.approx(hessian, rel=1e-3)


def test_the_layers_above_the_last_bend_are_certified(data):
    model = seeded(activated(nn.Softmax(1)))
    layers = measured(model, data).layers["curvature.trace"]
    assert not layers["0"].exact
    assert layers["2"].exact
    truth = references.Truth(model, data, F.cross_entropy)
    expected = float(truth.hessian(["2.weight", "2.bias"]).trace())
    assert layers["2"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.3), nn.Hardtanh(-0.5, 0.5), nn.PReLU()],
    ids=str,
)
def test_a_piecewise_linear_network_is_certified(activation, data):
    model = seeded(activated(activation))
    found = measured(model, data)["curvature.trace"]
    hessian, _ = dense(model, data)
    assert found.exact
    assert found.status is sl.results.Status.OK
    assert found.text.endswith("columns, certified")
    assert found.value == pytest.approx(hessian, rel=1e-9)


def test_a_layer_tied_in_series_is_not_certified(data):
    model = seeded(lambda: wirings.Tied("series"))
    found = measured(model, data).layers["curvature.trace"]
    truth = references.Truth(model, data, F.cross_entropy)
    hessian = float(truth.hessian(["a.weight", "a.bias"]).trace())
    ggn = float(truth.ggn(["a.weight", "a.bias"]).trace())
    assert not found["a"].exact
    assert found["a"].value == pytest.approx(ggn, rel=1e-9)
    assert abs(hessian - ggn) > 1e-3 * abs(hessian)
    assert found["stem"].exact  # what lies below and above bends only along the tied weight
    assert found["head"].exact


@pytest.mark.parametrize("how", ["parallel", "one_weight_in_two_modules"])
def test_a_layer_tied_in_parallel_is_certified(how, data):
    model = seeded(lambda: wirings.Tied(how))
    found = measured(model, data).layers["curvature.trace"]["a"]
    truth = references.Truth(model, data, F.cross_entropy)
    hessian = float(truth.hessian(["a.weight", "a.bias"]).trace())
    assert found.exact
    assert found.value == pytest.approx(hessian, rel=1e-9)


def test_a_tied_layer_whose_second_use_is_dead_is_right_without_a_certificate(data):
    # In series, but the ReLU between the uses is closed on all samples: the outputs do not bend.
    # The graph cannot know that, so the value is not called exact; the residual is 0 all the same.
    model = seeded(lambda: wirings.Tied("series"))
    with torch.no_grad():
        model.a.weight.copy_(-model.a.weight.abs())
        model.a.bias.fill_(-1.0)
    found = sl.measure(model, data, measures="curvature.trace").layers["curvature.trace"]["a"]
    truth = references.Truth(model, data, F.cross_entropy)
    expected = float(truth.hessian(["a.weight", "a.bias"]).trace())
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_parameters_linear_one_at_a_time_are_enough_for_the_trace(data):
    # token · scale bends along both together, but the trace only sees the diagonal.
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))
            self.shift = nn.Parameter(torch.randn(3))
            self.head = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.scale * (x + self.shift))

    model = seeded(Product)
    found = measured(model, data).layers["curvature.trace"]["(model)"]
    truth = references.Truth(model, data, F.cross_entropy)
    assert found.exact
    expected = float(truth.hessian(["scale", "shift"]).trace())
    assert found.value == pytest.approx(expected, rel=1e-9)


class BentLater(nn.Module):
    """Linear where the first feature is below a threshold, curved above it."""

    def __init__(self, threshold):
        super().__init__()
        self.first, self.head = nn.Linear(3, 5), nn.Linear(5, 3)
        self.threshold = threshold

    def forward(self, x):
        h = self.first(x)
        return self.head(torch.where(x[:, :1] > self.threshold, h.tanh(), h.relu()))


class BentParameterLater(nn.Module):
    """The same along a parameter that belongs to no layer, and is looked at alone."""

    def __init__(self, threshold):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 3)
        self.threshold = threshold

    def forward(self, x):
        h = self.scale * x
        return self.head(torch.where(x[:, :1] > self.threshold, h.tanh(), h.relu()))


@pytest.mark.parametrize("network", [BentLater, BentParameterLater])
@pytest.mark.parametrize("place", ["later in the first batch", "in the second batch"])
def test_a_bend_that_only_some_samples_have_is_not_called_exact(place, network, generator):
    x = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    x[20:, 0] += 2.0
    y = torch.randint(3, (40,), generator=generator)
    data = [(x, y)] if "first" in place else [(x[:20], y[:20]), (x[20:], y[20:])]
    model = seeded(lambda: network(1.5))
    found = measured(model, data)["curvature.trace"]
    hessian, ggn = dense(model, data)
    assert abs(hessian - ggn) > 1e-3 * abs(hessian)
    if found.exact:  # the label decides which value is right
        assert found.value == pytest.approx(hessian, rel=1e-9)
    else:
        assert found.value == pytest.approx(ggn, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_label_does_not_depend_on_the_scale_of_the_weights(dtype, data):
    data = [(x.to(dtype), y) for x, y in data]
    for factor in (1e-4, 1.0, 1e4):
        for activation, certified in ((nn.ReLU(), True), (nn.SiLU(), True), (nn.Softmax(1), False)):
            model = seeded(activated(activation)).to(dtype)
            with torch.no_grad():
                model[0].weight *= factor
                model[2].weight /= factor
            found = measured(model, data).layers["curvature.trace"]["0"]
            assert found.exact == certified


def test_the_ggn_trace_is_exact_by_its_own_name(data):
    model = seeded(activated(nn.GELU()))
    found = sl.measure(model, data, measures="curvature.ggn_trace")["curvature.ggn_trace"]
    _, ggn = dense(model, data)
    assert found.exact
    assert found.quantity == "GGN"
    assert found.value == pytest.approx(ggn, rel=1e-9)


def test_every_measure_of_a_bent_layer_says_so(data):
    model = seeded(activated(nn.Softmax(1)))
    patterns = ("relative.*", "scaled.*", "neuron.*")
    cards = [card for pattern in patterns for card in sl.cards(pattern)]
    names = [card.name for card in cards if card.needs.sweep]
    options = {"weight_decay": 0.1}
    report = sl.measure(model, data, measures=names, method="exact", options=options)
    for name, found in report.items():
        assert found.status is sl.results.Status.GGN, name
    for name, rows in report.layers.items():
        assert rows["0"].status is sl.results.Status.GGN, name
        assert rows["2"].exact, name
    assert {"relative.kappa", "scaled.trace", "neuron.rho_sum"} <= set(report.layers)


# -- what takes the place of the GGN ---------------------------------------------------------------


def check_estimated(found, expected):
    """An error bar that the truth is near enough to."""
    assert not found.exact
    assert found.status is not sl.results.Status.GGN
    assert found.quantity == "Hessian"
    low, high = found.interval
    assert low < found.value < high
    assert 0 < found.stderr < abs(expected)
    # 5 standard errors are exceeded once in a million by chance; 16 probes know theirs to a fifth
    assert abs(found.value - expected) < 5 * found.stderr


@pytest.mark.parametrize("activation", [nn.GELU(), nn.Tanh()], ids=str)
@pytest.mark.usefixtures("only_probes")
def test_by_default_the_hessian_of_a_smooth_network_is_estimated(activation, data):
    model = seeded(activated(activation))
    report = sl.measure(model, data, measures="curvature.trace")
    found, layers = report["curvature.trace"], report.layers["curvature.trace"]
    hessian, ggn = dense(model, data)
    check_estimated(found, hessian)
    assert "weight probes of the" in found.text
    narrow = found.interval[1] - found.interval[0] <= 2 * 0.05 * abs(found.value)
    assert found.status is (sl.results.Status.OK if narrow else sl.results.Status.NOT_CONVERGED)
    assert narrow or "would have sufficed" in found.text
    truth = references.Truth(model, data, F.cross_entropy)
    check_estimated(layers["0"], float(truth.hessian(["0.weight", "0.bias"]).trace()))
    assert layers["2"].exact  # certified, so no probe is spent on it
    # the estimate is of another number than the sweep's: it would not pass for the GGN
    assert abs(hessian - ggn) > 1e-3 * abs(hessian)


@pytest.mark.usefixtures("only_probes")
def test_by_default_every_measure_of_a_bent_layer_is_estimated(data):
    model = seeded(activated(nn.GELU()))
    names = ["relative.kappa", "scaled.trace", "neuron.rho_sum"]
    report = sl.measure(model, data, measures=names)
    truth = references.Truth(model, data, F.cross_entropy)
    expected = {name: {} for name in names}
    for layer in ("0", "2"):
        weight = model.get_submodule(layer).weight
        H, view = truth.hessian([f"{layer}.weight"]), references.matrix_view(model[int(layer)])
        expected["relative.kappa"][layer] = references.kappa(H, weight, view)
        expected["scaled.trace"][layer] = float(weight.detach().square().sum() * H.trace())
        expected["neuron.rho_sum"][layer] = sum(references.rho(H, weight, view))
    for name, values in expected.items():
        check_estimated(report[name], sum(values.values()))
        check_estimated(report.layers[name]["0"], values["0"])
        assert report.layers[name]["2"].exact
        assert report.layers[name]["2"].value == pytest.approx(values["2"], rel=1e-9)
