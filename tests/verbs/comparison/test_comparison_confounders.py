"""What stands beside a difference in flatness: confounders that differ as well."""

import pytest
import torch

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.pages import report as pages
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.comparison import Comparison, Pair
from verbs.comparison.given_reports import comparison, report


def tables(kappa, gini, weight, frequency):
    """For 'a' and 'b', and a third measure that does not tell them apart."""
    return {
        name: report(
            relative__kappa=kappa[i],
            softmax__gini=gini[i],
            norms__weight=weight[i],
            activity__frequency=frequency[i],
            head__trace=(5.0 + i, 1.0),
        )
        for i, name in enumerate("ab")
    }


PLAIN = {
    "kappa": (1.0, 3.0),
    "gini": (0.2, 0.4),
    "weight": (12.0, 10.0),
    "frequency": ((0.5, 0.05), (0.6, 0.05)),  # 0.1 apart, and 1.96·0.05·√2 = 0.139 is the error
}
GINI = Pair("softmax.gini", 0.2, 0.4)
WEIGHT = Pair("norms.weight", 12.0, 10.0)


def confounders(found):
    [pair] = found.pairs()
    return list(pair.confounders)


def test_confounders_that_differ_beyond_their_errors():
    found = comparison(tables(**PLAIN))
    [pair] = found.pairs()
    assert (pair.first, pair.flatter_by) == ("a", ("relative.kappa",))
    assert pair.open == ("head.trace",)  # 1 apart, with an error of 2.8
    assert confounders(found) == [GINI, WEIGHT]
    also = "They also differ in Gini impurity of the predictions (0.2 against 0.4), weight norm "
    assert (
        f"'a' is flatter than 'b' by relative.kappa (1 against 3). {also}(12 against 10)."
        in str(found)
    )
    assert "weight norm (12 against 10), which may be the cause." in found.details()


def test_a_frequency_beyond_its_error_is_named():
    found = comparison(tables(**PLAIN | {"frequency": ((0.5, 0.05), (0.7, 0.05))}))
    assert confounders(found)[-1] == Pair("activity.frequency", 0.5, 0.7)


def test_confidence_is_no_confounder_once_it_is_equal():
    surer = tables(**PLAIN | {"kappa": (2.5, 3.0), "gini": (0.4, 0.4)})["a"]
    found = comparison(tables(**PLAIN), matched_pairs={"a": {"b": surer}})
    [pair] = found.pairs()
    assert confounders(found) == [WEIGHT]
    assert pair.values["relative.kappa"] == (2.5, 3.0)
    assert pair.by_confidence == []
    assert "(2.5 against 3). They also differ in weight norm (12 against 10)." in str(found)


def test_confidence_is_named_where_the_order_is_lost():
    surer = tables(**PLAIN | {"kappa": (3.0, 3.0), "gini": (0.4, 0.4)})["a"]
    found = comparison(tables(**PLAIN), matched_pairs={"a": {"b": surer}})
    [pair] = found.pairs()
    assert pair.before == (("relative.kappa",), ())
    assert pair.by_confidence == ["relative.kappa"]
    assert "Only because confidence differs: relative.kappa." in found.details()


def test_nothing_else_differs():
    found = comparison(tables(**PLAIN | {"gini": (0.2, 0.2), "weight": (10.0, 10.0)}))
    assert found.certain("relative.kappa", "a", "b")
    assert confounders(found) == []
    assert "also differ" not in str(found) + found.details()


def test_json_and_page_say_the_same():
    found = comparison(tables(**PLAIN))
    [said] = found.to_dict()["pairs"]
    assert said["confounders"] == [
        {"confounder": "softmax.gini", "in_first": 0.2, "in_second": 0.4},
        {"confounder": "norms.weight", "in_first": 12.0, "in_second": 10.0},
    ]
    text = pages.html(Comparison.from_json(found.to_json()))
    assert "weight norm (12 against 10)" in text


def test_a_rescaled_network_differs_in_its_norms():
    problem = problems.relu_mlp()
    models = {
        "plain": problem.model,
        "rescaled": symmetries.rescale_layers(problem.model, "0", "2", 10.0),
    }
    found = sl.compare(models, problem.data, measures="neuron.rho_sum")
    norms = {
        name: float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())
        for name, model in models.items()
    }
    named = {pair.confounder: pair for pair in confounders(found)}
    assert set(named) <= {"norms.weight", "activity.activation_norm"}  # the function is the same
    assert found.answer().tied == [("plain", "rescaled")]
    assert named["norms.weight"].in_first == pytest.approx(norms["plain"])
    assert named["norms.weight"].in_second == pytest.approx(norms["rescaled"])
