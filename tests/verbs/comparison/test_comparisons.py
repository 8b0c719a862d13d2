"""Several networks side by side; what is ranked, and what also differs, has files of its own."""

import copy
import itertools

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.measures import get
from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel.measures.setup import Setup
from spiritlevel.pages import report as pages
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.comparison import Comparison, counterparts
from spiritlevel.verbs.comparison.measuring import equally_confident
from verbs.comparison.given_reports import report

pytestmark = pytest.mark.sampled(2)  # the others at night

MEASURES = ["curvature.trace", "relative.kappa", "head.kappa"]


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
    found = Comparison({name: report(relative__kappa=v) for name, v in values.items()})
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

    found = Comparison({"a": searched(1.0), "b": searched(2.0)})
    assert found.certain("sharpness.worst", "a", "b") is certain
    assert not found.certain("sharpness.worst", "b", "a")


def test_exact_values_leave_no_rank_open():
    found = Comparison({n: report(head__kappa=v) for n, v in {"x": 2.0, "y": 1.0}.items()})
    assert {n: str(p) for n, p in found.places("head.kappa").items()} == {"x": "2", "y": "1"}


def test_equal_values_share_a_rank():
    found = Comparison({n: report(head__kappa=1.0) for n in "xyz"})
    assert {str(p) for p in found.places("head.kappa").values()} == {"1 (1–3)"}


def test_disagreements_are_all_pairs_of_measures_with_opposite_orders():
    tables = {
        "a": {"curvature__trace": 1.0, "relative__kappa": 3.0, "head__kappa": 1.0},
        "b": {"curvature__trace": 2.0, "relative__kappa": 2.0, "head__kappa": 1.0},
        "c": {"curvature__trace": 3.0, "relative__kappa": 1.0, "head__kappa": 5.0},
    }
    found = Comparison({name: report(**values) for name, values in tables.items()})
    expected = set()
    for a, b in itertools.combinations(tables, 2):
        for m, n in itertools.permutations(tables["a"], 2):
            if tables[a][m] < tables[b][m] and tables[a][n] > tables[b][n]:
                expected.add((a, b, m.replace("__", "."), n.replace("__", ".")))
    got = {(d.flatter, d.sharper, d.first, d.second) for d in found.disagreements()}
    assert got == expected


def test_a_rescaled_copy_is_explained_by_scale(problem):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    found = sl.compare(models, problem.data, measures=MEASURES)
    assert found.value("curvature.trace", "plain").value != pytest.approx(
        found.value("curvature.trace", "rescaled").value, rel=0.1
    )
    assert [(e.measure, e.by) for e in found.explained()] == [("curvature.trace", "scale")]
    assert str(found.places("relative.kappa")["plain"]) == "1 (1–2)"  # the same up to round-off


@pytest.mark.parametrize(("measure", "counterpart"), counterparts().items())
def test_rescaling_moves_a_measure_and_not_its_counterpart(measure, counterpart):
    """Claims on the cards, which the contract suite executes."""
    assert "layer_rescale" not in get(measure).invariant
    assert "layer_rescale" in get(counterpart).invariant


@pytest.mark.parametrize("measures", ["curvature.trace", ["curvature.tra*e"], ["curvature.trace"]])
def test_the_counterpart_is_measured_along(problem, measures):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    names = ["curvature.trace", *MEASURED_ALONG]
    for _ in range(2):  # what is found out about a network is paid for once
        found = sl.compare(models, problem.data, measures=measures)
        without = sl.measure(problem.model, problem.data, measures=names)
    assert [(e.measure, e.by) for e in found.explained()] == [("curvature.trace", "scale")]
    assert found.measures == ["curvature.trace", *MEASURED_ALONG, "relative.kappa"]
    assert found.unchecked() == {}
    assert found.reports["plain"].cost == without.cost  # the same sweep brings both


def test_scale_that_could_not_be_checked_is_said_so(problem):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    found = sl.compare(models, problem.data, measures=["head.trace_squared", "head.kappa"])
    assert found.explained() == []
    assert list(found.unchecked()) == ["head.trace_squared"]
    assert found.to_dict()["unchecked"] == found.unchecked()
    for text in (str(found), pages.html(found)):
        assert found.unchecked()["head.trace_squared"] in text


def test_the_head_eigenvalue_is_checked_for_scale(problem):
    into_the_head = symmetries.rescale_layers(problem.model, "2", "4", 10.0)
    models = {"plain": problem.model, "rescaled": into_the_head}
    found = sl.compare(models, problem.data, measures="head.lambda_max")
    assert found.unchecked() == {}
    assert [(e.measure, e.by) for e in found.explained()] == [("head.lambda_max", "scale")]


def test_what_has_no_counterpart_in_the_catalogue():
    """By hand: a measure that gets a counterpart, or comes without one, has to be looked at."""
    without = {
        card.name for card in sl.cards() if card.direction and "layer_rescale" not in card.invariant
    } - set(counterparts())
    assert without == {
        "curvature.trace_squared",  # nothing here scales the squared Hessian
        "head.trace_squared",
        "decomposition.upper_bound",  # of the trace, and it may be far from it
        "decomposition.path_lambda_max",  # of the path alone, without the inputs that scale back
    }


def test_a_counterpart_that_a_network_does_not_have_is_said_so(problem):
    models = {"plain": problem.model, "rescaled": rescaled(problem)}
    for model in models.values():  # biases alone: no weight matrix is left to take κ of
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
    found = sl.compare(models, problem.data, measures="curvature.trace")
    assert "relative.kappa" not in found.measures
    assert "curvature.trace; relative.kappa could not be measured on all" in str(found)


def test_what_scale_and_confidence_both_account_for_names_both():
    def tables(first, second):
        return {"a": report(**first), "b": report(**second)}

    def values(trace, kappa, gini):
        return {"curvature__trace": trace, "relative__kappa": kappa, "softmax__gini": gini}

    found = Comparison(
        tables(values(1.0, 3.0, 0.2), values(2.0, 2.0, 0.4)),
        matched=tables(values(5.0, 3.0, 0.4), values(5.0, 2.0, 0.4)),
    )
    [(by, text)] = [(e.by, e.text) for e in found.explained()]  # κ stays as it was
    assert by == "scale"
    assert text.index("relative.kappa") < text.index("Gini impurity 0.2")


@pytest.fixture
def more_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (400,), generator=generator)


def test_a_more_certain_copy_is_explained_by_confidence(problem, more_data):
    models = {"sure": hotter(problem, 4.0), "unsure": problem.model}
    found = sl.compare(models, more_data, measures=["head.trace", "relative.kappa"])
    order = found.value("head.trace", "sure").value < found.value("head.trace", "unsure").value
    assert order
    # they are one network at two temperatures: at equal confidence nothing is left of it
    assert [(e.measure, e.by, e.flatter) for e in found.explained()] == [
        ("head.trace", "confidence", "sure"),  # κ of all layers differs within its data error
        ("head.kappa", "confidence", "sure"),
    ]
    for name in ("head.trace", "relative.kappa", "softmax.gini"):
        values = [found.matched[model][name].value for model in models]
        assert values[0] == pytest.approx(values[1], rel=1e-9), name
    assert found.matched["sure"]["softmax.gini"].value == pytest.approx(
        found.value("softmax.gini", "unsure").value, rel=1e-9
    )


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
    found = sl.compare(models, (problem.inputs(), y), loss="mse", measures="curvature.trace")
    assert found.matched is None
    assert "Not compared at equal confidence: Equal confidence needs the loss" in str(found)
    plain = sl.compare(models, problem.data, measures="head.trace", match_confidence=False)
    assert plain.matched is None
    assert "equal confidence" not in str(plain)
    assert (plain.answer().measure, plain.answer().matched) == ("head.kappa", False)


def test_confounders_are_always_beside(problem):
    models = {"one": problem.model, "two": rescaled(problem)}
    seen = []
    found = sl.compare(
        models, problem.data, measures="head.kappa", on_report=lambda n, r: seen.append(n)
    )
    assert found.measures == ["head.kappa", *MEASURED_ALONG]
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
