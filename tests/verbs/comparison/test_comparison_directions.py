"""Ranks follow the direction on the card; what is no measure of flatness has none."""

import copy
import dataclasses

import pytest
import torch

import spiritlevel as sl
from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel.pages import report as pages
from spiritlevel.pages.report.numbers import with_data
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.comparison import Comparison
from spiritlevel.verbs.comparison.ranking import larger
from verbs.comparison.given_reports import comparison, report

LARGER = "larger is flatter"
OTHERS = {  # by hand: all that is not "smaller is flatter"
    "activity.activation_norm": None,
    "activity.death": None,
    "activity.frequency": None,
    "activity.gradient_norm": None,
    "bound.c1": None,
    "bound.c2": None,
    "bound.generalization": None,
    "bound.representativeness": None,
    "curvature.lambda_min": None,
    "norms.distance": None,
    "norms.margin": LARGER,
    "norms.margin_mean": LARGER,
    "norms.weight": None,
    "sensitivity.jacobian": None,
    "sensitivity.jacobian_outside": None,
    "softmax.confidence": None,
    "softmax.entropy": None,
    "softmax.gini": None,
}


def test_directions_of_all_cards():
    found = {card.name: card.direction for card in sl.cards()}
    assert {n: d for n, d in found.items() if d != "smaller is flatter"} == OTHERS
    assert set(MEASURED_ALONG) <= {name for name, direction in OTHERS.items() if direction is None}


@pytest.fixture(scope="module")
def temperatures():
    """One network at two temperatures, with the labels that it gives itself."""
    problem = problems.relu_mlp()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    sure = copy.deepcopy(problem.model)
    with torch.no_grad():
        for parameter in sure[-1].parameters():
            parameter.mul_(4.0)
        y = problem.model(x).argmax(dim=1)
        logits = {"unsure": problem.model(x), "sure": sure(x)}
    measures = ["neuron.rho_sum", "norms.margin", "softmax.confidence", "softmax.entropy"]
    found = sl.compare({"unsure": problem.model, "sure": sure}, (x, y), measures=measures)
    return found, logits


def test_one_network_at_two_temperatures(temperatures):
    found, logits = temperatures
    for name, z in logits.items():  # the values, by hand
        p, (first, second) = z.softmax(dim=1), z.topk(2, dim=1).values.T
        margin = float(torch.quantile(first - second, 0.1))
        assert found.value("norms.margin", name).value == pytest.approx(margin, rel=1e-9)
        confidence = float(p.max(dim=1).values.mean())
        assert found.value("softmax.confidence", name).value == pytest.approx(confidence, rel=1e-9)
        entropy = float(-(p * p.log()).sum(dim=1).mean())
        assert found.value("softmax.entropy", name).value == pytest.approx(entropy, rel=1e-9)
    places = {m: {n: str(p) for n, p in found.places(m).items()} for m in found.measures}
    assert places["norms.margin"] == {"sure": "1", "unsure": "2"}
    assert places["neuron.rho_sum"] == {"unsure": "1 (1–2)", "sure": "2 (1–2)"}
    for name in ("softmax.confidence", "softmax.entropy", *MEASURED_ALONG):
        assert places[name] == {}
    [pair] = found.pairs()
    assert pair.by_confidence == ["norms.margin"]


def test_the_table_shows_values_without_a_rank(temperatures):
    found, _ = temperatures
    text, _, _ = found.details().partition("at equal confidence")
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["norms.margin"].count("#") == lines["neuron.rho_sum"].count("#") == 2
    for name in ("softmax.confidence", "softmax.entropy"):
        assert "#" not in lines[name]
        for network in ("sure", "unsure"):
            assert f"{found.value(name, network).value:.4g}" in lines[name]
    assert "Larger values are flatter for norms.margin." in found.details()
    without = "Not flatness measures, so without a rank: activity.activation_norm, "
    assert without in found.details()


def test_json_says_the_direction_and_ranks_only_what_has_one(temperatures):
    found, _ = temperatures
    data = found.to_dict()
    assert data["directions"] == {
        name: OTHERS.get(name, "smaller is flatter") for name in found.measures
    }
    assert set(data["ranks"]) == {"neuron.rho_sum", "norms.margin"}
    assert str(Comparison.from_json(found.to_json())) == str(found)


def test_one_network_is_not_flatter_than_itself(temperatures):
    """As it is, its margin looks flatter; at equal confidence nothing is left of that."""
    found = temperatures[0]
    assert "cannot be separated by neuron.rho_sum" in found.findings()[0]
    assert found.answer().matched
    assert {str(place) for place in found.answer().places.values()} == {"1 (1–2)"}
    assert "Without matching confidence: 1 (1–2) &#x27;unsure&#x27;, 2" in pages.html(found)


def test_errors_leave_ranks_open_where_larger_is_flatter():
    values = {"a": (1.0, 0.1), "b": (1.1, 0.1), "c": (9.0, 0.1)}
    found = comparison({name: report(norms__margin=v) for name, v in values.items()})
    places = {name: str(place) for name, place in found.places("norms.margin").items()}
    assert places == {"a": "3 (2–3)", "b": "2 (2–3)", "c": "1"}
    assert found.certain("norms.margin", "c", "a")
    assert not found.certain("norms.margin", "a", "c")


def test_opposite_orders_count_only_between_measures_of_flatness():
    first = {"relative__kappa": 1.0, "norms__margin": 2.0, "softmax__entropy": 3.0}
    second = {"relative__kappa": 2.0, "norms__margin": 3.0, "softmax__entropy": 1.0}
    answer = comparison({"a": report(**first), "b": report(**second)}).answer()
    assert answer.opposing == {"norms.margin": [("b", "a")]}
    assert answer.agreeing == ()


def test_what_has_no_card_here_or_measures_no_flatness_is_not_ranked():
    found = Comparison(
        {n: report(other__version=v, norms__weight=v) for n, v in (("a", 1.0), ("b", 2.0))}
    )
    assert found.ranked == []
    text = str(found)
    assert "None of these measures flatness, so there are no ranks." in text
    assert "Unknown to this version, so without a rank: other.version." in found.details()
    assert "flatter by" not in text
    assert "None of these measures flatness, so there are no ranks." in pages.html(found)


def unsure(value, **errors):
    given = {"exact": False, "settings": {"num_samples": 8}} | errors
    return sl.Measurement("relative.kappa", value, **given)


def test_an_error_that_is_not_known_is_not_none():
    known = unsure(1.0, stderr=0.1, data_stderr=0.0)
    hidden = unsure(1.25, stderr=0.1)  # by the probes: about theirs or less
    few = unsure(9.0, status=sl.results.Status.NOT_CONVERGED)
    exact = unsure(9.0, exact=True)
    assert larger(unsure(1.3, stderr=0.1, data_stderr=0.0), known)  # 1.96 · 0.141 = 0.28
    assert not larger(dataclasses.replace(hidden, value=1.3), known)  # 1.96 · 0.173 = 0.34
    assert larger(dataclasses.replace(hidden, value=1.35), known)
    assert not larger(few, known)
    assert larger(exact, known)
    assert with_data(hidden) == pytest.approx((1.25 - 0.277, 1.25 + 0.277), abs=1e-3)
    assert with_data(few) is None
    assert with_data(exact) == (9.0, 9.0)


def test_it_is_said_that_ranks_are_about_these_samples():
    values = {"a": {"relative__kappa": 1.0}, "b": {"relative__kappa": 2.0}}
    found = comparison({name: report(**given) for name, given in values.items()})
    said = "sampling error is not known for relative.kappa: these ranks are about these samples"
    assert said in found.details()
    assert "these ranks are about these samples alone" in pages.html(found)
    known = dataclasses.replace(found.reports["a"]["relative.kappa"], data_stderr=0.1)
    whole = found.reports["a"]
    sure = sl.Report({"relative.kappa": known}, layers={}, settings=whole.settings, cost=whole.cost)
    assert "sampling error" not in comparison({"a": sure, "b": sure}).details()
