"""Several networks side by side; what is ranked, and what also differs, has files of its own."""

import copy

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel.measures.setup import Setup
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.comparison import Comparison
from spiritlevel.verbs.comparison.measuring import equally_confident
from verbs.comparison.given_reports import comparison, report

pytestmark = pytest.mark.sampled(2)  # the others at night

MEASURES = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
ONE_SWEEP = ["curvature.trace", *MEASURED_ALONG]


@pytest.fixture
def problem():
    return problems.relu_mlp()


def rescaled(problem):
    return symmetries.rescale_layers(problem.model, "0", "2", 10.0)


def hotter(problem, factor):
    """The same decisions, more or less certain."""
    model = copy.deepcopy(problem.model)
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.mul_(factor)
    return model


def test_ranks_and_the_ranks_that_errors_leave_open():
    values = {"a": (1.0, 0.1), "b": (1.1, 0.1), "c": (9.0, 0.1), "d": (5.0, 3.0)}
    found = comparison({name: report(relative__kappa=v) for name, v in values.items()})
    places = found.places("relative.kappa")
    assert {name: place.rank for name, place in places.items()} == {"a": 1, "b": 2, "c": 4, "d": 3}
    for name, (value, stderr) in values.items():  # by hand: two values differ beyond 1.96 σ
        certain = {
            other: abs(value - v) > 1.96 * (stderr**2 + s**2) ** 0.5
            for other, (v, s) in values.items()
        }
        below = sum(certain[o] and values[o][0] < value for o in values)
        above = sum(certain[o] and values[o][0] > value for o in values)
        assert (places[name].best, places[name].worst) == (1 + below, 4 - above), name
    assert str(places["c"]) == "4 (3–4)"
    assert str(places["a"]) == "1 (1–3)"


@pytest.mark.parametrize(("residual", "certain"), [(0.4, True), (0.6, False)])
def test_residuals_leave_ranks_open_too(residual, certain):
    """What two searches may be off by adds up: 1 and 2 are apart for 0.4 each, not for 0.6."""

    def searched(value):
        m = sl.Measurement(
            "sharpness.worst", value, exact=False, residual=residual, settings={"num_samples": 8}
        )
        return sl.Report({m.name: m}, layers={}, settings=m.settings, cost=sl.results.Cost())

    found = comparison({"a": searched(1.0), "b": searched(2.0)})
    assert found.certain("sharpness.worst", "a", "b") is certain
    assert not found.certain("sharpness.worst", "b", "a")


def test_exact_values_leave_no_rank_open():
    found = comparison({n: report(head__kappa=v) for n, v in {"x": 2.0, "y": 1.0}.items()})
    assert {n: str(p) for n, p in found.places("head.kappa").items()} == {"x": "2", "y": "1"}


def test_equal_values_share_a_rank():
    found = comparison({n: report(head__kappa=1.0) for n in "xyz"})
    assert {str(p) for p in found.places("head.kappa").values()} == {"1 (1–3)"}


def test_a_rescaled_copy_is_no_flatter(problem):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    for _ in range(2):  # what is found out about a network is paid for once
        found = sl.compare(models, problem.data, measures="curvature.trace")
        without = sl.measure(problem.model, problem.data, measures=ONE_SWEEP)
    assert found.value("curvature.trace", "plain").value != pytest.approx(
        found.value("curvature.trace", "rescaled").value, rel=0.1
    )
    assert found.ranked == ["neuron.rho_sum"]  # which is measured along
    assert found.answer().tied == [("plain", "rescaled")]
    assert "curvature.trace (" in found.summary()[-1]
    assert found.reports["plain"].cost == without.cost  # the same sweep brings both


def test_what_may_rank_networks_is_not_measured_along_where_it_takes_more_passes(problem):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    found = sl.compare(models, problem.data, measures="head.kappa")
    assert found.measures == ["head.kappa", *MEASURED_ALONG]
    assert found.answer() is None
    assert "Measure neuron.rho_sum too." in found.summary()[0]


@pytest.fixture
def more_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (400,), generator=generator)


def test_a_more_certain_copy_is_no_flatter_at_equal_confidence(problem, more_data):
    models = {"sure": hotter(problem, 4.0), "unsure": problem.model}
    found = sl.compare(models, more_data, measures=["neuron.rho_max", "softmax.gini"])
    as_it_is = [found.value("neuron.rho_max", name).value for name in models]
    assert as_it_is[0] != pytest.approx(as_it_is[1], rel=0.05)
    # they are one network at two temperatures: at equal confidence nothing is left of it
    one, other = found.side_by_side("neuron.rho_max", "sure", "unsure", matched=True)
    assert one.value == pytest.approx(other.value, rel=1e-9)
    assert other is found.value("neuron.rho_max", "unsure")  # the other one is as it was
    assert found.answer().tied == [("sure", "unsure")]
    gini = found.matched_pairs["sure"]["unsure"]["softmax.gini"].value
    assert gini == pytest.approx(found.value("softmax.gini", "unsure").value, rel=1e-9)


def test_each_two_networks_are_compared_at_the_confidence_of_the_less_confident(problem, more_data):
    models = {name: hotter(problem, factor) for name, factor in (("a", 3), ("b", 1), ("c", 9))}
    found = sl.compare(models, more_data, measures="norms.margin")
    assert {name: set(beside) for name, beside in found.matched_pairs.items()} == {
        "a": {"b"},
        "c": {"a", "b"},
    }
    for sure, unsure in (("a", "b"), ("c", "a"), ("c", "b")):
        gini = found.matched_pairs[sure][unsure]["softmax.gini"].value
        assert gini == pytest.approx(found.value("softmax.gini", unsure).value, rel=1e-9)


def test_equal_confidence_is_that_of_the_least_certain(problem, more_data):
    x, _ = more_data
    models = {name: hotter(problem, factor) for name, factor in (("a", 3), ("b", 1), ("c", 9))}
    copies = equally_confident(Setup(), models, more_data)
    impurities = [
        (1 - model(x).softmax(dim=1).square().sum(dim=1)).mean().item() for model in copies.values()
    ]
    least = (1 - models["b"](x).softmax(dim=1).square().sum(dim=1)).mean().item()
    assert impurities == pytest.approx([least] * 3, rel=1e-10)
    for name, model in models.items():  # only the head was touched, and of a copy
        assert torch.equal(model[0].weight, copies[name][0].weight)
        assert model[-1] is not copies[name][-1]


def test_what_cannot_be_made_equally_confident_says_why(problem):
    models = {"one": problem.model, "two": rescaled(problem)}
    y = torch.randn(8, 3, dtype=torch.float64)
    found = sl.compare(models, (problem.inputs(), y), loss="mse", measures="neuron.rho_sum")
    assert found.matched_pairs is None
    assert "Not compared at equal confidence: Equal confidence needs the loss" in str(found)
    chosen = {"measures": "neuron.rho_sum", "match_confidence": False}
    plain = sl.compare(models, problem.data, **chosen)
    assert plain.matched_pairs is None
    assert "equal confidence" not in str(plain)
    assert (plain.answer().measure, plain.answer().matched) == ("neuron.rho_sum", False)


def test_each_report_is_told_of(problem):
    models = {"one": problem.model, "two": rescaled(problem)}
    seen = []
    report = {"on_report": lambda name, _: seen.append(name)}
    sl.compare(models, problem.data, measures="norms.weight", **report)
    assert seen == ["one", "two"]


def test_json_brings_the_same_comparison_back(problem):
    models = {"one": problem.model, "two": rescaled(problem)}
    found = sl.compare(models, problem.data, measures=MEASURES)
    again = Comparison.from_json(found.to_json())
    assert (str(again), again.details()) == (str(found), found.details())


def test_refusals(problem):
    with pytest.raises(sl.SpiritlevelError, match=r"at least two networks\. Got 1"):
        sl.compare({"one": problem.model}, problem.data)
    with pytest.raises(sl.SpiritlevelError, match=r"mapping of names to modules.*Got list"):
        sl.compare([problem.model], problem.data)
    with pytest.raises(sl.SpiritlevelError, match="the same data"):
        Comparison({"a": report(head__kappa=1.0), "b": report(head__trace=1.0)})
    with pytest.raises(sl.SpiritlevelError, match=r"Comparison\.to_json wrote"):
        Comparison.from_json("{}")


def test_networks_are_left_as_they_were(problem):
    models = {"one": problem.model, "two": nn.Sequential(nn.Linear(4, 3)).double()}
    before = [copy.deepcopy(m.state_dict()) for m in models.values()]
    sl.compare(models, problem.data, measures="head.trace")
    for model, state in zip(models.values(), before, strict=True):
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
