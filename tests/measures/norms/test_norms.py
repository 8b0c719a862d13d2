"""Norms of the weights, distances and margins against plain loops and numpy."""

import copy

import numpy
import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.math.head import stream_margins
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.verbs import reference_problems as problems

FISHER = ["norms.fisher_rao", "norms.fisher_rao_model"]
MARGIN = ["norms.margin", "norms.margin_mean"]


def value(model, data, name, **options):
    return sl.measure(model, data, measures=name, **options)[name].value


def drawn(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# -- weights and distance -----------------------------------------------------------------------


def test_weight_norm_is_that_of_the_vector_and_of_each_layer():
    problem = problems.relu_convnet()
    report = sl.measure(problem.model, problem.data, measures="norms.weight")
    state = problem.model.state_dict()
    everything = torch.cat([value.flatten() for value in state.values()])
    assert report["norms.weight"].value == pytest.approx(float(everything.norm()), rel=1e-15)
    for layer in ("0", "2", "5"):
        own = torch.cat([state[f"{layer}.weight"].flatten(), state[f"{layer}.bias"]])
        found = report.layers["norms.weight"][layer].value
        assert found == pytest.approx(float(own.norm()), rel=1e-15)


def test_weight_norm_of_chosen_layers_and_frozen_parameters():
    problem = problems.relu_mlp()
    problem.model[2].bias.requires_grad_(False)
    expected = float(problem.model[2].weight.detach().norm())
    assert value(problem.model, problem.data, "norms.weight", layers="2") == pytest.approx(expected)


def started(model, generator):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += drawn(parameter.shape, generator).to(parameter)
    return other


@pytest.mark.parametrize("kind", ["model", "state", "wrapped", "float32"])
def test_distance_from_initialization(kind, generator):
    problem = problems.relu_mlp()
    before = started(problem.model, generator)
    if kind == "float32":
        before = before.float()
    expected = sum(
        float((now.detach() - then.detach().double()).square().sum())
        for now, then in zip(problem.model.parameters(), before.parameters(), strict=True)
    )
    given = {
        "model": before,
        "float32": before,
        "state": before.state_dict(),
        "wrapped": nn.DataParallel(before),
    }[kind]
    options = {"initial": given}
    report = sl.measure(problem.model, problem.data, measures="norms.distance", options=options)
    assert report["norms.distance"].value == pytest.approx(expected**0.5, rel=1e-14)
    moved = (problem.model[2].weight - before[2].weight).double().square().sum()
    moved += (problem.model[2].bias - before[2].bias).double().square().sum()
    layer = report.layers["norms.distance"]["2"].value
    assert layer == pytest.approx(float(moved.detach().sqrt()), rel=1e-14)
    assert report["norms.distance"].settings["initial"] == "given"


def test_distance_knows_tied_weights_under_either_name(generator):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).relu())

    model = Tied().double().eval()
    state = {n: torch.zeros_like(p) for n, p in model.state_dict().items() if n != "first.weight"}
    data = (drawn((4, 3), generator), torch.zeros(4).long())
    found = value(model, data, "norms.distance", options={"initial": state})
    parts = [model.first.weight, model.first.bias, model.second.bias]
    expected = torch.cat([p.detach().flatten() for p in parts]).norm()
    assert found == pytest.approx(float(expected), rel=1e-14)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("2.weight"), r"every measured parameter.*'2.weight' is missing; it holds"),
        (
            lambda s: s.update({"2.weight": torch.zeros(2, 2)}),
            r"'2.weight' has shape \(2, 2\) there and \(5, 6\) in the network",
        ),
        (lambda s: s["0.bias"].fill_(float("nan")), r"'0.bias' holds NaN or infinity"),
    ],
)
def test_initial_weights_that_do_not_fit_are_refused(change, text):
    problem = problems.relu_mlp()
    state = copy.deepcopy(problem.model).state_dict()
    change(state)
    with pytest.raises(sl.SpiritlevelError, match=f"(?s)norms.distance.*{text}|{text}") as raised:
        value(problem.model, problem.data, "norms.distance", options={"initial": state})
    assert "option 'initial'" in str(raised.value)


def test_distance_without_initial_weights_says_what_to_pass():
    problem = problems.relu_mlp()
    with pytest.raises(sl.SpiritlevelError, match=r"options=\{'initial': model_or_state_dict\}"):
        value(problem.model, problem.data, "norms.distance")
    report = sl.measure(problem.model, problem.data, measures="norms.*")
    assert "norms.distance" not in report  # a pattern leaves it out


# -- margins ------------------------------------------------------------------------------------


def margins(logits, labels):
    """A loop over rows; ignored ones left out."""
    return [
        float(row[label]) - max(float(v) for j, v in enumerate(row) if j != label)
        for row, label in zip(logits.detach(), labels.tolist(), strict=True)
        if label != -100
    ]


@pytest.mark.parametrize("count", [1, 2, 8, 11])
def test_margin_is_numpys_quantile(count, generator):
    problem = problems.relu_mlp()
    x, y = drawn((count, 4), generator), torch.randint(3, (count,), generator=generator)
    report = sl.measure(
        problem.model, list(zip(x.split(3), y.split(3), strict=True)), measures=MARGIN
    )
    expected = margins(problem.model(x), y)
    assert report["norms.margin"].value == pytest.approx(numpy.quantile(expected, 0.1), rel=1e-13)
    assert report["norms.margin_mean"].value == pytest.approx(numpy.mean(expected), rel=1e-12)
    if count > 1:
        error = numpy.std(expected, ddof=1) / count**0.5
        assert report["norms.margin_mean"].data_stderr == pytest.approx(error, rel=1e-10)
    assert report["norms.margin"].data_stderr is None
    assert report["norms.margin"].cost == sl.results.Cost(forwards=count)


class PerToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def test_margin_of_positions_counts_each_once_whatever_its_class_weight(generator):
    torch.manual_seed(0)
    model = PerToken().double()
    x, y = drawn((6, 5, 4), generator), torch.randint(3, (6, 5), generator=generator)
    y[1, 2:] = -100
    y[4] = -100
    expected = margins(model(x).reshape(-1, 3), y.flatten())
    weights = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    for given in (None, weights):
        loss = CrossEntropy(class_weights=given, class_dim=-1)
        data = list(zip(x.split(4), y.split(4), strict=True))
        report = sl.measure(model, data, loss=loss, measures=MARGIN)
        quantile = numpy.quantile(expected, 0.1)
        assert report["norms.margin"].value == pytest.approx(quantile, rel=1e-13)
        assert report["norms.margin_mean"].value == pytest.approx(numpy.mean(expected), rel=1e-12)
    nothing = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)  # class 1 does not count at all
    loss = CrossEntropy(class_weights=nothing, class_dim=-1)
    kept = margins(model(x).reshape(-1, 3), y.masked_fill(y == 1, -100).flatten())
    found = value(model, data, "norms.margin", loss=loss)
    assert found == pytest.approx(numpy.quantile(kept, 0.1), rel=1e-13)


def test_margin_needs_class_numbers():
    problem = problems.relu_mlp()
    probabilities = torch.full((8, 3), 1 / 3, dtype=torch.float64)
    with pytest.raises(sl.SpiritlevelError, match=r"norms.margin.*class numbers.*argmax\(dim=1\)"):
        value(problem.model, (problem.inputs(), probabilities), "norms.margin")
    problem = problems.linear_regression()
    with pytest.raises(sl.SpiritlevelError, match=r"norms.margin.*'cross_entropy'.*Got 'mse'"):
        value(problem.model, problem.data, "norms.margin", loss="mse")


@pytest.mark.parametrize("budget", [1, 2_000, 2**30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_streamed_margins_are_those_of_the_whole_matrix(dtype, budget, generator):
    features, weight = drawn((11, 6), generator).to(dtype), drawn((70, 6), generator).to(dtype)
    bias = drawn((70,), generator).to(dtype)
    labels = torch.randint(70, (11,), generator=generator)
    for b in (None, bias):
        z = features.double() @ weight.double().T + (0 if b is None else b.double())
        labels[0] = z[0].argmax()
        found = stream_margins(features, weight, b, labels, budget=budget)
        expected = margins(z, labels)
        rel = 1e-13 if dtype is torch.float64 else 1e-5  # of logits up to 10
        assert found.tolist() == pytest.approx(expected, rel=rel, abs=10 * rel)


def test_margin_shares_the_forward_pass_with_a_sweep():
    problem = problems.relu_mlp()
    names = ["curvature.trace", "norms.margin", "softmax.entropy", "activity.frequency"]
    alone = sl.measure(problems.relu_mlp().model, problem.data, measures="curvature.trace")
    together = sl.measure(problem.model, problem.data, measures=names)
    for name in names[1:]:
        assert together[name].cost == alone["curvature.trace"].cost
        assert together[name].value == value(problem.model, problem.data, name)
    extra = together.cost - alone.cost
    assert extra == sl.results.Cost(
        forwards=1 + 3
    )  # one sample for its target, three to find rectifiers
