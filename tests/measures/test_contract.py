"""Every claim on every card is executed; ids are readable with `pytest -k`."""

import importlib.util
import math
import pathlib

import pytest
import torch

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.engine.precision import Precision
from spiritlevel.measures import get, names
from spiritlevel.testing import checks, problem_named
from spiritlevel.testing.moves import NETWORKS, before_and_after
from spiritlevel.testing.references import linear_model_forms
from spiritlevel.testing.under_test import MAXIMUM, UnderTest
from spiritlevel.verbs import reference_problems as problems

CARDS = [get(name) for name in names()]
# of the design; the catalogue is complete when all are there
FAMILIES = {"activity", "bound", "curvature", "decomposition", "head", "neuron", "norms"}
FAMILIES |= {"pac_bayes", "relative", "scaled", "sensitivity", "sharpness", "softmax"}
# the others are positive on all problems here
SIGNED = {"curvature.lambda_min", "norms.margin", "norms.margin_mean", "activity.death"}
BENT = "attention"  # untrained, it bends in nearly all weights: its Hessian has both signs
# how the layers of these make the whole, where that is neither a sum nor a maximum; None: by a rule
# of their own, which the family's tests hold
COMBINED = {
    "activity.activation_norm": math.hypot,
    "activity.gradient_norm": math.hypot,
    "norms.weight": math.hypot,
    "norms.distance": math.hypot,
    "activity.frequency": None,
    "activity.death": None,
}


FORMS = {}  # by family and loss: some take quadratures


def closed_forms_of(family):
    """The common ones, and those of a family."""

    def closed_form(model, x, y, loss, options):
        if (family, loss) not in FORMS:
            FORMS[family, loss] = dict(linear_model_forms(model, x, loss))
            if importlib.util.find_spec(f"measures.forms.{family}"):
                of_family = importlib.import_module(f"measures.forms.{family}")
                FORMS[family, loss] |= of_family.forms(model, x, y, loss, options)
        return FORMS[family, loss]

    return closed_form


CHECKS = [
    check for card in CARDS for check in checks(card.name, closed_form=closed_forms_of(card.family))
]
# measures next to each other: a sample of these holds every claim in every case
CHECKS.sort(key=lambda check: (check.claim, check.case))
OF_CARDS = [check for check in CHECKS if check.claim == "complete"]
OF_VALUES = [check for check in CHECKS if check.claim != "complete"]


@pytest.mark.parametrize("check", OF_CARDS, ids=str)
def test_the_card(check):
    check()


@pytest.mark.sampled(4)  # as many claims as all other tests of measures have cases
@pytest.mark.parametrize("check", OF_VALUES, ids=str)
def test_a_claim_of_the_card(check):
    check()


# -- what is claimed of the catalogue -----------------------------------------------------------


def is_of_this_package(card):
    """Not of a plugin, whose families and files are its own affair."""
    return card.function.__module__.startswith("spiritlevel.")


def test_the_registry_is_complete():
    assert {card.family for card in CARDS if is_of_this_package(card)} == FAMILIES


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_the_family_is_the_folder(card):
    if is_of_this_package(card):
        assert card.function.__module__ == f"spiritlevel.measures.{card.family}"
        assert pathlib.Path(card.function.__code__.co_filename).parent.name == card.family


@pytest.mark.parametrize("name", problems.ALL)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_nothing_on_these_problems_is_flat(card, name):
    measured, problem = UnderTest(card), problem_named(name)
    if measured.applies(problem):
        value = measured.usual(problem).whole.value
        assert value > 0 or card.name in SIGNED or (name == BENT and value != 0)


def test_every_known_move_is_made():
    assert set(NETWORKS) == set(symmetries.SYMMETRIES)
    assert set(symmetries.SYMMETRIES) - {"batch_split"} <= set(symmetries.FUNCTION_PRESERVING)


@pytest.mark.parametrize("biases", [True, False], ids=["", "no biases"])
@pytest.mark.parametrize(
    ("move", "network"), [(move, each) for move, networks in NETWORKS.items() for each in networks]
)
def test_a_move_keeps_the_function_and_changes_the_weights_or_the_cut(move, network, biases):
    before, after = before_and_after(move, network, biases=biases)
    x = before.inputs()
    now, then = (p.model(x) for p in (after, before))
    if move == "logit_shift":
        assert not torch.allclose(now, then, rtol=0.1)
        now, then = now.log_softmax(dim=1), then.log_softmax(dim=1)
    torch.testing.assert_close(now, then, rtol=1e-10, atol=1e-12)
    if move == "batch_split":
        assert [len(y) for _, y in after.data] != [len(y) for _, y in before.data]
        return
    heads = {"relu_mlp": "4", "relu_convnet": "5"}
    apart = {
        "batchnorm_absorb": ("0", "3"),
        "batchnorm_fold": ("0", "1", "3", "4"),
        "logit_shift": (heads.get(network),),
        "free_shift": ("0", "2"),
    }
    chained = {layer for pair in before.pairs for layer in pair} or ("0.value", "0.out")
    layers = apart.get(move, chained)
    for layer in layers:
        then, now = (p.model.get_submodule(layer).weight for p in (before, after))
        assert not torch.allclose(then, now, rtol=0.1)


def test_a_probe_costs_one_product_a_sample():
    measured = UnderTest(get("curvature.trace_squared"))
    found = measured.whole(problem_named("relu_mlp"), precision=Precision(max_passes=20))
    assert found.text.startswith("20 weight probes")
    assert found.cost.products == 8 * 20


def test_whole_is_the_sum_or_the_maximum_of_the_layers():
    problem = problem_named("relu_convnet")
    # few draws of searches that have no layers
    options = UnderTest(CARDS[0], {"draws": 4, "ascent_steps": 2, "restarts": 0}).options(problem)
    report = sl.measure(problem.model, problem.data, measures="*.*", options=options)
    assert {"curvature.trace", "scaled.lambda_max", "neuron.rho_max"} <= set(report.layers)
    for name, rows in report.layers.items():
        values = [m.value for m in rows.values()]
        combined = COMBINED.get(name, max if get(name).formula.startswith(MAXIMUM) else sum)
        if combined is not None:
            whole = combined(*values) if combined is math.hypot else combined(values)
            assert report[name].value == pytest.approx(whole, rel=1e-12), name


def test_maximum_names_its_layer():
    problem = problem_named("relu_mlp")
    report = sl.measure(problem.model, problem.data, measures=["relative.*", "scaled.*"])
    for name in ("relative.kappa_max", "scaled.trace_max", "scaled.lambda_max_max"):
        rows = report.layers[name.removesuffix("_max")]
        top = max(rows, key=lambda layer: rows[layer].value)
        assert report[name].text.partition(";")[0] == f"layer {top!r}"
        assert report[name].value == rows[top].value
