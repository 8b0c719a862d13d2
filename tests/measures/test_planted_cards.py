"""The contract on measures with false cards: it fails for those, and only in what is false."""

import dataclasses

import pytest

from spiritlevel.measures import Measured, get, measure
from spiritlevel.testing import check_measure, checks
from spiritlevel.testing.claims import moves_as_the_card_says
from spiritlevel.testing.under_test import UnderTest


@pytest.fixture
def plant(monkeypatch):
    """Registers a measure with the values of another, and its card but for the claims given.

    So a wrong claim is the only fault.
    """
    registry = measure.__globals__
    monkeypatch.setitem(registry, "_CARDS", dict(registry["_CARDS"]))

    def planted(source, **claims):
        true, name = get(source), "mine.planted"

        def function(workspace):
            """As the measure it was taken from."""
            found = true.function(workspace)
            return Measured(
                dataclasses.replace(found.whole, name=name),
                {layer: dataclasses.replace(m, name=name) for layer, m in found.layers.items()},
            )

        card = {each.name: getattr(true, each.name) for each in dataclasses.fields(true)}
        card |= {"name": name, "cost": card.pop("cost_text"), **claims}
        del card["function"]
        measure(**card)(function)
        return name

    return planted


NORM, GINI = get("norms.weight").invariant, get("softmax.gini").invariant
FALSE = {
    "it moves, and the card says that it does not": (
        ("norms.weight", {"invariant": {*NORM, "layer_rescale"}}),
        {"symmetry-relu_mlp-layer_rescale", "symmetry-relu_convnet-layer_rescale"},
    ),
    "it does not move, and the card says that it does": (
        ("softmax.gini", {"invariant": GINI - {"unit_permute"}}),
        {"symmetry-relu_mlp-unit_permute", "symmetry-relu_convnet-unit_permute"},
    ),
    "a formula, and the card says that chance has a part in it": (
        ("softmax.gini", {"found_by": "draws"}),
        {"record", "seed"},
    ),
    "probabilities of a loss that has none": (
        ("softmax.gini", {"requires": ()}),
        {"finite-linear_regression", "cost-linear_regression"},
    ),
    "a summary that is a sentence": (("softmax.gini", {"summary": "A mean."}), {"complete"}),
}


@pytest.mark.parametrize(("measure_and_claims", "expected"), FALSE.values(), ids=FALSE)
def test_a_false_claim_fails_the_checks_that_execute_it(plant, measure_and_claims, expected):
    source, claims = measure_and_claims
    name, failed = plant(source, **claims), set()
    for check in checks(name):
        try:
            check()
        except Exception:
            failed.add(str(check).removeprefix(f"{name}-"))
    assert failed == expected


def test_a_true_card_passes_and_a_false_one_is_told_all_that_is_false(plant):
    check_measure(plant("softmax.gini"))
    name = plant("softmax.gini", found_by="draws", requires=())
    with pytest.raises(AssertionError) as failed:
        check_measure(name)
    first, *others = str(failed.value).splitlines()
    assert first == "4 of 31 checks failed:"
    assert others[0] == "  mine.planted-record: found_by is 'draws', and it has no stderr"
    assert "ZeroDivisionError: " in str(others)


def test_a_closed_form_that_is_wrong_or_missing(plant):
    name = plant("softmax.gini")
    for forms, text in (({name: 0.5}, r"and 0\.5 by its closed form"), ({}, "form is missing")):
        with pytest.raises(AssertionError, match=text):
            check_measure(name, closed_form=lambda *_, forms=forms: forms)


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("curvature.trace", "layer_rescale"),  # moves, but the planted card says it does not
        ("relative.kappa", "neuron_rescale"),
        ("relative.kappa", "layer_rescale"),  # does not move, but the planted card says it does
        ("curvature.lambda_max", "unit_permute"),
    ],
)
def test_a_false_symmetry_is_caught(name, move):
    true = get(name)
    false = dataclasses.replace(true, invariant=true.invariant ^ {move})
    moves_as_the_card_says(UnderTest(true), move, "relu_mlp")
    with pytest.raises(AssertionError):
        moves_as_the_card_says(UnderTest(false), move, "relu_mlp")
