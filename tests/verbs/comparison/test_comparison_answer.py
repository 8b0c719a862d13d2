"""The answer of a comparison: who is flattest, once scale and confidence are out of the way."""

import re

import pytest

from spiritlevel.verbs.comparison import Comparison
from spiritlevel.verbs.comparison.sentences import apart
from verbs.comparison.given_reports import CHANGES, comparison, report, trained_to


def networks(**kappas):
    """By name: κ, or κ with its error."""
    return {
        name: report(relative__kappa=kappa, softmax__gini=0.3) for name, kappa in kappas.items()
    }


def order(sentence):
    """The networks in the order in which a sentence names them."""
    return re.findall(r"'(\w)'", sentence)


def test_the_order_at_equal_confidence_leads():
    pairs = {"a": networks(b=9.0, c=9.0)}  # at the confidence of either
    found = comparison(networks(a=1.0, b=2.0, c=4.0), matched_pairs=pairs)
    answer = found.answer()
    assert (answer.measure, answer.matched) == ("relative.kappa", True)
    assert answer.names == ["b", "c", "a"]
    first, second, *_ = str(found).splitlines()
    assert order(first) == ["b", "c", "a"]
    assert "relative.kappa" in first
    assert order(second) == ["a", "b", "c"]
    assert "The order differs only because confidence differs." in second
    # nothing below says that 'a' is flatter, which is so only before confidence is equal
    assert "'a' is flatter" not in str(found)


def test_raw_and_matched_stand_side_by_side():
    found = comparison(networks(a=1.0, b=2.0), matched_pairs={"a": networks(b=9.0)})
    table = found.ranking_table()
    assert [column.title for column in table.columns] == [
        *("network", "rank", "relative.kappa", "equally confident", "Gini impurity")
    ]
    assert table.rows == [("b", "1", "2", "2", "0.3"), ("a", "2", "1", "9", "0.3")]
    assert table.columns[0].kind == "name"  # so that no terminal is too narrow for it


def test_the_same_order_is_said_to_be_the_same():
    found = comparison(networks(a=1.0, b=2.0), matched_pairs={"a": networks(b=1.5)})
    first, second, *_ = found.summary()
    assert order(first) == ["a", "b"]
    assert order(second) == []


def test_the_same_order_with_less_certainty_is_said_to_be_less_certain():
    found = comparison(networks(a=1.0, b=2.0), matched_pairs={"a": networks(b=(1.5, 1.0))})
    first, second, *_ = found.summary()
    assert "'a' and 'b' cannot be separated by relative.kappa" in first
    assert "(1.5 and 2)" in first
    assert second == "Without matching confidence: 1 'a', 2 'b'."


def test_without_equal_confidence_the_networks_as_they_are_decide():
    found = comparison(networks(a=2.0, b=1.0))
    assert found.answer().matched is False
    assert order(found.summary()[0]) == ["b", "a"]
    titles = [column.title for column in found.ranking_table().columns]
    assert titles == ["network", "rank", "relative.kappa", "Gini impurity"]


def both(kappa, rho, head=1.0):
    return report(relative__kappa=kappa, neuron__rho_sum=rho, head__kappa=head)


def test_a_measure_that_symmetries_change_ranks_nothing():
    reports = {"a": both(1.0, 5.0), "b": both(2.0, 4.0)}
    found = comparison(reports, scales={"relative.kappa": CHANGES})
    assert (found.answer().measure, found.answer().names) == ("neuron.rho_sum", ["b", "a"])
    assert found.places("relative.kappa") == {}
    assert "contradicts it:" not in str(found)
    trust = found.summary()[-1]
    assert trust.startswith("Trust: neuron.rho_sum is comparable between these networks: ")
    assert "although the function stays the same: relative.kappa (7 times under neuron" in trust
    first, *_ = found.rank_tables()
    assert first.rows[0] == ["relative.kappa", "1", "2", "changes"]
    assert first.rows[1] == ["neuron.rho_sum", "5 #2", "4 #1", "unchanged"]


def test_networks_that_nothing_may_rank_are_not_ranked_and_it_says_why():
    kinds = dict.fromkeys(("relative.kappa", "softmax.gini"), CHANGES)
    found = comparison(networks(a=1.0, b=2.0), scales=kinds)
    assert found.answer() is None
    assert found.pairs() == []
    first, *others = found.summary()
    assert first.startswith("These networks cannot be ranked by what was measured")
    assert "relative.kappa (7 times under neuron_rescale). Measure neuron.rho_sum too." in first
    assert others == []


def test_networks_that_were_not_audited_are_ranked_by_what_the_cards_claim():
    found = Comparison({"a": both(1.0, 5.0), "b": both(2.0, 4.0)})
    assert found.ranked == ["neuron.rho_sum"]
    assert "(these networks were not audited)" in found.summary()[-1]
    assert "relative.kappa (by its card under neuron_rescale)" in found.summary()[-1]


def test_others_that_agree_and_that_contradict():
    found = comparison({"a": both(1.0, 5.0), "b": both(2.0, 4.0), "c": both(3.0, 9.0, 2.0)})
    answer = found.answer()
    assert answer.agreeing == ("head.kappa",)
    assert answer.opposing == {"neuron.rho_sum": [("b", "a")]}
    assert answer.open["head.kappa"] == [("a", "b")]
    _, agreeing, opposing, _ = found.summary()
    assert agreeing == (
        "head.kappa never contradicts this order significantly (it cannot separate 'a' and 'b')."
    )
    assert opposing == "neuron.rho_sum contradicts it: 'b' is flatter than 'a'."
    assert found.findings()[0] == (
        "'a' is flatter than 'b' by relative.kappa (1 against 2); 'b' is flatter by neuron.rho_sum."
    )


def test_a_tie_is_called_one():
    found = comparison({"a": both(1.0, 5.0), "b": both(1.0, 5.0)})
    assert found.summary()[0] == (
        "'a' and 'b' cannot be separated by relative.kappa, as the networks are: its values agree "
        "within their errors (both 1)."
    )
    assert "neuron.rho_sum and head.kappa cannot separate them either." in found.summary()
    three = comparison({"a": both(1.0, 5.0), "b": both(1.0, 5.0), "c": both(9.0, 5.0)})
    assert three.summary()[0] == (
        "From flat to sharp by relative.kappa, as the networks are: 1 (1–2) 'a', 1 (1–2) 'b', "
        "3 'c'. It cannot separate 'a' and 'b'."
    )


def test_a_small_difference_means_nothing_where_symmetries_make_a_small_one():
    nearly = CHANGES.__class__("nearly", "1.5 times under norm_rescale", slack=1.5)
    found = comparison(networks(a=1.0, b=1.4, c=1.6), scales={"relative.kappa": nearly})
    assert [str(place) for place in found.places("relative.kappa").values()] == [
        *("1 (1–2)", "2 (1–3)", "3 (2–3)")
    ]


def test_pairs_that_go_round_in_a_circle_share_a_rank():
    """Each pair at a confidence of its own: a before b, b before c, c before a."""
    pairs = {"a": networks(c=5.0), "b": networks(c=1.0)}
    found = comparison(networks(a=1.0, b=2.0, c=4.0, d=9.0), matched_pairs=pairs)
    for flatter, sharper in (("a", "b"), ("b", "c"), ("c", "a")):
        assert found.certain("relative.kappa", flatter, sharper, matched=True)
    answer = found.answer()
    assert {n: str(p) for n, p in answer.places.items()} == {
        **dict.fromkeys("abc", "1 (1–3)"),
        "d": "4",
    }
    assert answer.circles == [["a", "b", "c"]]
    assert "'a', 'b' and 'c' share a rank: compared two at a time" in str(found)


def test_a_hardly_trained_network_is_left_out_where_others_are_further():
    def found(*losses):
        values = (3.0, 2.0, 1.0)
        reports = {
            name: trained_to(loss, report(neuron__rho_sum=value))
            for name, loss, value in zip("abc", losses, values, strict=False)
        }
        return comparison(reports)

    left_out = found(0.01, 0.012, 1.2)  # half of log 10 is 1.15
    assert left_out.names == ["a", "b"]
    assert left_out.answer().names == ["b", "a"]
    assert "'c' is left out: its loss (1.2) is closer to that of guessing (2.3)" in str(left_out)
    assert left_out.ranking_table().rows[-1][:2] == ("c", "–")
    assert "The losses differ" not in str(left_out)
    assert found(0.01, 0.012, 1.1).names == ["a", "b", "c"]
    assert "The losses differ, from 0.01 ('a') to 1.1 ('c')" in str(found(0.01, 0.012, 1.1))
    alike = found(1.3, 1.4, 1.5)  # as far as this task goes, perhaps
    assert alike.names == ["a", "b", "c"]
    assert "'a', 'b' and 'c' are hardly trained: their loss (1.3, 1.4, 1.5) is closer to" in str(
        alike
    )
    assert found(0.01, 2.0).names == ["a", "b"]  # of two, none is left out


def test_loss_and_accuracy_stand_beside_the_ranks():
    reports = {
        name: trained_to(loss, each)
        for (name, each), loss in zip(networks(a=1.0, b=2.0).items(), (0.25, 0.5), strict=True)
    }
    table = comparison(reports).ranking_table()
    assert [column.title for column in table.columns[-2:]] == ["loss", "accuracy"]
    assert table.rows[0][-2:] == ("0.25", "0.875")


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
    found = comparison(networks(a=13.00041, b=13.00038))
    assert [row[2] for row in found.ranking_table().rows] == ["13.00038", "13.00041"]


def test_a_short_text_stands_for_an_answer():
    answer = comparison(networks(a=2.0, b=1.0)).answer()
    assert repr(answer) == "Ranking(1 'b', 2 'a' by relative.kappa)"


def test_a_frame_has_ranks_as_the_answer_has_them():
    reports = {"a": both(1.0, 5.0), "b": both(2.0, 4.0)}
    frame = comparison(reports, scales={"relative.kappa": CHANGES}).to_frame()
    rows = frame.set_index(["network", "measure"])
    assert rows.loc[("b", "neuron.rho_sum"), ["value", "rank", "best", "worst"]].tolist() == [
        *(4.0, 1.0, 1.0, 1.0)
    ]
    assert rows.loc[("a", "relative.kappa"), "scale"] == "changes"
    assert rows.loc[[("a", "relative.kappa")], "rank"].isna().all()
    assert len(frame) == 6
