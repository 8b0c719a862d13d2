"""The answer of a comparison: who is flattest, once scale and confidence are out of the way."""

import re

import pytest

from spiritlevel.verbs.comparison import Comparison
from spiritlevel.verbs.comparison.sentences import apart
from verbs.comparison.given_reports import report


def networks(**kappas):
    """By name: κ, and a trace that says the opposite."""
    return {
        name: report(relative__kappa=kappa, curvature__trace=100 - value, softmax__gini=0.3)
        for name, kappa in kappas.items()
        for value in [kappa[0] if isinstance(kappa, tuple) else kappa]
    }


def order(sentence):
    """The networks in the order in which a sentence names them."""
    return re.findall(r"'(\w)'", sentence)


def test_the_order_at_equal_confidence_leads():
    found = Comparison(networks(a=1.0, b=2.0, c=3.0), matched=networks(a=9.0, b=2.0, c=4.0))
    answer = found.answer()
    assert (answer.measure, answer.matched) == ("relative.kappa", True)
    assert answer.names == ["b", "c", "a"]
    first, second, *_ = str(found).splitlines()
    assert order(first) == ["b", "c", "a"]
    assert "relative.kappa" in first
    assert order(second) == ["a", "b", "c"]
    # nothing below says that 'a' is flatter, which is so only before confidence is equal
    assert "'a' is flatter" not in str(found)


def test_raw_and_matched_stand_side_by_side():
    found = Comparison(networks(a=1.0, b=2.0), matched=networks(a=9.0, b=2.0))
    assert found.ranking_rows() == [
        ("network", "as it is", "equally confident", "Gini impurity"),
        ("b", "2 #2", "2 #1", "0.3"),
        ("a", "1 #1", "9 #2", "0.3"),
    ]


def test_the_same_order_is_said_to_be_the_same():
    found = Comparison(networks(a=1.0, b=2.0), matched=networks(a=3.0, b=4.0))
    first, second, *_ = found.summary()
    assert order(first) == ["a", "b"]
    assert order(second) == []


def test_the_same_order_with_less_certainty_is_said_to_be_less_certain():
    found = Comparison(networks(a=1.0, b=2.0), matched=networks(a=(3.0, 1.0), b=(4.0, 1.0)))
    first, second, *_ = found.summary()
    assert order(first) == order(second) == ["a", "b"]
    assert (first.count("(1–2)"), second.count("(1–2)")) == (2, 0)


def test_without_equal_confidence_the_networks_as_they_are_decide():
    found = Comparison(networks(a=2.0, b=1.0))
    assert found.answer().matched is False
    assert order(found.summary()[0]) == ["b", "a"]
    assert found.ranking_rows()[0] == ("network", "relative.kappa", "Gini impurity")


def test_a_measure_that_scale_changes_decides_nothing_silently():
    found = Comparison({n: report(curvature__trace=v) for n, v in (("a", 1.0), ("b", 2.0))})
    assert found.answer().scale_free is False
    assert "this order may be one of scale" in found.summary()[1]


def test_others_that_agree_and_that_contradict():
    def both(kappa, rho, head):
        return report(relative__kappa=kappa, neuron__rho_sum=rho, head__kappa=head)

    found = Comparison({"a": both(1.0, 5.0, 1.0), "b": both(2.0, 4.0, 1.0), "c": both(3, 9.0, 2.0)})
    answer = found.answer()
    assert answer.agreeing == ("head.kappa",)
    assert answer.opposing == {"neuron.rho_sum": [("b", "a")]}
    _, agreeing, opposing = found.summary()
    assert "head.kappa" in agreeing
    assert "neuron.rho_sum, 1 of 3" in opposing
    assert order(found.findings()[0]) == ["a", "b", "a", "b"]
    assert "1 of 3" in found.findings()[0]


def test_loss_and_accuracy_stand_beside_the_ranks():
    reports = networks(a=1.0, b=2.0)
    for each, loss in zip(reports.values(), (0.25, 0.5), strict=True):
        each.settings = each.settings | {"subject": {"mean_loss": loss, "accuracy": 0.875}}
    heading, first, _ = Comparison(reports).ranking_rows()
    assert heading[-2:] == ("loss", "accuracy")
    assert first[-2:] == ("0.25", "0.875")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([13.04, 13.01], ["13.04", "13.01"]),
        ([13.4, 13.2], ["13.4", "13.2"]),
        ([1.0, 1.0000001], ["1", "1"]),
        ([0.0, 0.0], ["0", "0"]),
    ],
)
def test_digits_that_show_the_difference(values, shown):
    assert apart(values) == shown


def test_the_table_never_shows_two_different_values_alike():
    found = Comparison(
        {n: report(relative__kappa=v) for n, v in (("a", 13.00041), ("b", 13.00038))}
    )
    assert [row[1] for row in found.ranking_rows()[1:]] == ["13.00038 #1", "13.00041 #2"]
