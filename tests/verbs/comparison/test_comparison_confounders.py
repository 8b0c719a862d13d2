"""What stands beside a difference in flatness: confounders that differ as well."""

import copy

import pytest
import torch

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.pages import report as pages
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.comparison import Comparison, Pair
from verbs.comparison.given_reports import report


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


def test_confounders_that_differ_beyond_their_errors():
    found = Comparison(tables(**PLAIN))
    [one] = found.also_differing()  # the traces are 1 apart, with an error of 2.8
    assert (one.measure, one.flatter, one.sharper) == ("relative.kappa", "a", "b")
    assert one.confounders == (GINI, WEIGHT)
    assert [pair.direction for pair in one.confounders] == ["smaller", "larger"]
    assert one.left is None  # nobody looked at equal confidence
    assert (
        "'a' and 'b': 'a' is flatter by 1 of 1 measure. They also differ in Gini impurity of the "
        "predictions (0.2 against 0.4), weight norm (12 against 10)."
    ) in str(found)
    assert "weight norm (12 against 10), which may be the cause." in found.details()


def test_a_frequency_beyond_its_error_is_named():
    found = Comparison(tables(**PLAIN | {"frequency": ((0.5, 0.05), (0.7, 0.05))}))
    [one] = found.also_differing()
    assert one.confounders[-1] == Pair("activity.frequency", 0.5, 0.7)


def test_confidence_is_separable_where_the_order_stands_at_equal_confidence():
    matched = tables(**PLAIN | {"kappa": (2.5, 3.0), "gini": (0.4, 0.4)})
    found = Comparison(tables(**PLAIN), matched=matched)
    [one] = found.also_differing()
    assert one.confounders == (WEIGHT,)
    assert one.left == pytest.approx((3.0 - 2.5) / (3.0 - 1.0))
    assert "They also differ in weight norm (12 against 10)." in str(found)
    left = "What equal confidence leaves of the differences: 25% of relative.kappa."
    assert left in found.details()


def test_confidence_is_named_where_the_order_is_lost():
    matched = tables(**PLAIN | {"kappa": (3.0, 3.0), "gini": (0.4, 0.4)})
    found = Comparison(tables(**PLAIN), matched=matched)
    [one] = found.also_differing()
    assert one.confounders == (GINI, WEIGHT)
    assert one.left is None
    assert [e.by for e in found.explained()] == ["confidence"]


def test_nothing_else_differs():
    same = PLAIN | {"gini": (0.2, 0.2), "weight": (10.0, 10.0)}
    found = Comparison(tables(**same))
    assert found.certain("relative.kappa", "a", "b")
    assert found.also_differing() == []
    assert "also differ" not in str(found) + found.details()
    assert "no confounder differs as well" in pages.html(found)


def test_json_and_page_say_the_same():
    found = Comparison(tables(**PLAIN))
    [said] = found.to_dict()["also_differing"]
    assert said == {
        "measure": "relative.kappa",
        "flatter": "a",
        "sharper": "b",
        "confounders": [
            {
                "confounder": "softmax.gini",
                "in_flatter": 0.2,
                "in_sharper": 0.4,
                "direction": "smaller",
            },
            {
                "confounder": "norms.weight",
                "in_flatter": 12.0,
                "in_sharper": 10.0,
                "direction": "larger",
            },
        ],
        "left": None,
    }
    text = pages.html(Comparison.from_json(found.to_json()))
    assert "Differences in flatness that other differences may explain" in text
    assert "weight norm (larger in &#x27;a&#x27;: 12 against 10)" in text


def test_a_rescaled_network_differs_in_its_norms():
    problem = problems.relu_mlp()
    models = {
        "plain": problem.model,
        "rescaled": symmetries.rescale_layers(problem.model, "0", "2", 10.0),
    }
    found = sl.compare(models, problem.data, measures="curvature.trace")
    [one] = [d for d in found.also_differing() if d.measure == "curvature.trace"]
    norms = {
        name: float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())
        for name, model in models.items()
    }
    named = {pair.confounder: pair for pair in one.confounders}
    assert set(named) <= {"norms.weight", "activity.activation_norm"}  # the function is the same
    assert named["norms.weight"].in_flatter == pytest.approx(norms[one.flatter])
    assert named["norms.weight"].in_sharper == pytest.approx(norms[one.sharper])


def head_trace(model, x):
    """Its closed form: Gini impurity times squared feature norm."""
    p = model(x).softmax(dim=1)
    features = model[:-1](x).square().sum(dim=1)
    return float(((1 - p.square().sum(dim=1)) * features).mean())


def test_temperature_response_of_two_networks():
    """Features times 3, logits times 1.5: at equal confidence the trace is 9 times the other's."""
    problem = problems.relu_mlp()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (400,), generator=generator)
    other = copy.deepcopy(problem.model)
    with torch.no_grad():
        for parameter in other[2].parameters():
            parameter.mul_(3.0)
        other[4].weight.mul_(0.5)
        other[4].bias.mul_(1.5)
        plain, hot = head_trace(problem.model, x), head_trace(other, x)
    found = sl.compare({"plain": problem.model, "other": other}, (x, y), measures="head.trace")
    [one] = [d for d in found.also_differing() if d.measure == "head.trace"]
    assert (one.flatter, one.sharper) == ("plain", "other")
    assert one.left == pytest.approx((9 * plain - plain) / (hot - plain), rel=1e-8)
    assert "softmax.gini" not in [pair.confounder for pair in one.confounders]
