"""Every claim on every card is executed: measure × check, ids readable with `pytest -k`."""

import copy
import dataclasses
import functools
import importlib.util
import math
import pathlib

import pytest
import torch

import spiritlevel as sl
from measures.contract import (
    MAXIMUM,
    MOVES,
    ROUND_OFF,
    applies,
    check_agree,
    check_error_bars,
    estimated,
    margin,
    measured,
    options_for,
    permute_units,
    problem_named,
    suitable,
    usual,
    whole_of,
    work_on,
)
from spiritlevel import symmetries
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.engine.precision import Precision
from spiritlevel.measures import get, names
from spiritlevel.measures.options import Options
from zoo import references

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


each_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
each_problem = pytest.mark.parametrize("name", problems.ALL)


# -- 1. the card --------------------------------------------------------------------------------


def is_of_this_package(card):
    """Not of a plugin, whose families and files are its own affair."""
    return card.function.__module__.startswith("spiritlevel.")


def test_the_registry_is_complete():
    assert {card.family for card in CARDS if is_of_this_package(card)} == FAMILIES


@each_card
def test_card_is_complete(card):
    for field in ("name", "summary", "formula", "paper", "misleads"):
        assert getattr(card, field).strip(), field
    assert card.misleads.endswith(".")
    assert not card.summary.endswith(".")
    assert "\n" not in card.formula
    assert card.invariant <= set(symmetries.SYMMETRIES)
    assert card.function.__doc__
    assert card.cost_in_words()


@each_card
def test_formula_has_matching_brackets(card):
    for opening, closing in ("{}", "()"):
        assert card.formula.count(opening) == card.formula.count(closing)
    assert card.formula.count(r"\bigl") == card.formula.count(r"\bigr")
    assert card.formula.count(r"\Bigl") == card.formula.count(r"\Bigr")


@each_card
def test_name_is_family_dot_variant_and_the_family_is_the_folder(card):
    family, variant = card.name.split(".")
    assert variant.isidentifier()
    assert family == card.family
    if is_of_this_package(card):
        assert card.function.__module__ == f"spiritlevel.measures.{family}.cards"
        assert pathlib.Path(card.function.__code__.co_filename).parent.name == family


@each_card
def test_the_counterpart_does_not_change_with_the_scale(card):
    if card.counterpart is not None:
        assert "layer_rescale" not in card.invariant
        assert "layer_rescale" in get(card.counterpart).invariant
        assert get(card.counterpart).direction == card.direction


@pytest.mark.sampled(2)
@each_card
def test_results_carry_the_name_and_the_settings(card):
    result = usual(card, suitable(card, "relu_mlp", "relu_convnet"))
    for found in [result.whole, *result.layers.values()]:
        assert found.name == card.name
        assert found.settings["loss"] == "cross_entropy"
        assert found.settings["num_samples"] == 8
        assert found.settings["dtype"] == "float64"
        assert found.settings["method"] == "auto"
        check_error_bars(found)
    assert (result.whole.stderr is not None) == estimated(card)
    assert result.whole.exact <= all(layer.exact for layer in result.layers.values())


# -- 2. finite, in both precisions --------------------------------------------------------------


@pytest.mark.sampled(5)
@each_card
@each_problem
def test_finite_and_the_same_in_both_precisions(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        with pytest.raises(sl.SpiritlevelError, match=rf"{card.name}|option"):
            sl.measure(problem.model, problem.data, loss=problem.loss, measures=card.name)
        return
    double = usual(card, problem).whole
    single = whole_of(card, problem_named(name, torch.float32))
    assert math.isfinite(double.value)
    # nothing on these problems is flat
    assert double.value > 0 or card.name in SIGNED or (name == BENT and double.value != 0)
    # the signs of a probe do not depend on the precision, so estimates agree like exact values
    check_agree(double, single, rel=ROUND_OFF[torch.float32])


# -- 3. state -----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@each_card
def test_state_is_untouched(card):
    problem = suitable(card, "relu_convnet")
    model = problem.model
    model[1].train()
    model[5].weight.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = copy.deepcopy(model)
    rng = torch.random.get_rng_state()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    measured(card, problem)
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    for (name, now), (_, then) in zip(
        model.named_parameters(), before.named_parameters(), strict=True
    ):
        assert torch.equal(now, then), name
        assert now.requires_grad == then.requires_grad, name
        assert torch.equal(now.grad, torch.full_like(now, 3.0)), name


# -- 4. seeds -----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@each_card
def test_the_same_seed_gives_the_same_value(card):
    problem = suitable(card, "relu_mlp", "relu_convnet")
    first = whole_of(card, problem, seed=3)
    torch.rand(5)  # the global random state has no say
    assert whole_of(card, problem, seed=3).value == first.value
    other = usual(card, problem).whole  # the seed is 0
    check_agree(first, other, probes=estimated(card))
    if estimated(card):
        assert other.value != first.value  # the seed does something


# -- 5. symmetries ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["relu_mlp", "relu_convnet"])
@pytest.mark.parametrize("move", MOVES)
def test_moves_keep_the_function_and_change_the_parameters_or_the_cut(name, move, generator):
    problem = problem_named(name)
    moved = MOVES[move](problem, generator)
    x = problem.inputs()
    torch.testing.assert_close(moved.model(x), problem.model(x), rtol=1e-12, atol=1e-13)
    if move == "batch_split":
        assert [len(y) for _, y in moved.data] != [len(y) for _, y in problem.data]
    else:
        for producer, consumer in problem.pairs:
            for layer in (producer, consumer):
                before = problem.model.get_submodule(layer).weight
                after = moved.model.get_submodule(layer).weight
                assert not torch.allclose(before, after, rtol=0.1)
    assert problem.model is not moved.model or move == "batch_split"


def check_symmetry(card, move, problem, generator):
    """Unchanged if the card says so, and otherwise moved by much more than any tolerance."""
    before = usual(card, problem).whole
    after = whole_of(card, MOVES[move](problem, generator))
    # The signs of a probe follow the order of the parameters, so units that change places get other
    # ones: the value is then the same in distribution, as where samples change their order. Other
    # moves leave every parameter its sign.
    probes = move in ("unit_permute", "batch_split") and estimated(card)
    if move in card.invariant:
        check_agree(before, after, probes=probes)
    else:
        apart = abs(after.value - before.value)
        assert apart > 1e-3 * abs(before.value) + margin(before, after, rel=0, probes=probes)


@pytest.mark.sampled(5)
@each_card
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ["relu_mlp", "relu_convnet"])
def test_value_is_unchanged_by_exactly_the_symmetries_on_the_card(card, move, name, generator):
    problem = suitable(card, name)
    if problem is None:
        assert suitable(card, "relu_mlp", "relu_convnet") is not None  # claimed of no network
        return
    check_symmetry(card, move, problem, generator)


@pytest.mark.parametrize(
    ("name", "move"),
    [
        ("curvature.trace", "layer_rescale"),  # moves, but the planted card says it does not
        ("relative.kappa", "neuron_rescale"),
        ("relative.kappa", "layer_rescale"),  # does not move, but the planted card says it does
        ("curvature.lambda_max", "unit_permute"),
    ],
)
def test_a_false_card_is_caught(name, move, generator):
    true = get(name)
    false = dataclasses.replace(true, invariant=true.invariant ^ {move})
    problem = problem_named("relu_mlp")
    check_symmetry(true, move, problem, generator)
    with pytest.raises(AssertionError):
        check_symmetry(false, move, problem, generator)


# -- 6. cost ------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@each_card
@each_problem
def test_planned_cost_is_the_counted_cost(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        return
    workspace = work_on(problem)
    workspace.want(card.needs)
    planned = card.cost(workspace.plan, 8)
    counted = []
    problem.model.register_forward_hook(lambda module, args, output: counted.append(len(output)))
    run = workspace.run(card.needs)
    # the features' scales are found before the pass itself
    looked = sl.results.Cost(forwards=8 * card.needs.standardized)
    # parts of a packed weight are looked up: two backwards for each new length of batch
    routed = sl.results.Cost(backwards=2 * (4 + 3) * (name == BENT) * card.needs.sweep)
    assert run.cost + looked == planned + routed
    assert sum(counted) == planned.forwards  # what really went through the model
    columns = {"mse": 2, "cross_entropy": 2}[problem.loss]
    assert planned.backwards == (8 * columns if card.needs.sweep else 0)
    if name == BENT:
        return  # probes follow, as many as they need
    _ = run.doubts  # a second look, and tests of the derivatives, belong to no measure
    if card.needs.products:
        _ = workspace.products
    counted.clear()
    before = workspace.cost
    cost = card.function(workspace).whole.cost
    if card.cost_text:  # more than the shared pass, all of it counted
        assert sum(counted) <= (workspace.cost - before).forwards <= cost.forwards
    elif card.needs.products:  # the pass is not part of it; planned are only the pass's own runs
        assert sum(counted) == cost.forwards == cost.backwards
        assert cost.products % 8 == 0
        assert cost.products > 0
    else:
        assert (cost.forwards, cost.backwards) == (planned.forwards, planned.backwards)


def test_a_probe_costs_one_product_a_sample():
    problem = problem_named("relu_mlp")
    found = whole_of(get("curvature.trace_squared"), problem, precision=Precision(max_passes=20))
    assert found.text.startswith("20 weight probes")
    assert found.cost.products == 8 * 20


# -- 7. closed forms ----------------------------------------------------------------------------


@functools.cache
def closed_forms(name, family):
    """Of every measure that has one here: the common ones and those of a family."""
    problem = problem_named(name)
    forms = references.linear_model_forms(problem.model, problem.inputs(), problem.loss)
    for package in ("measures.forms", "forms"):  # of this suite, or a plugin's own
        module = f"{package}.{family}"
        if importlib.util.find_spec(package) and importlib.util.find_spec(module):
            data = (problem.inputs(), problem.targets())
            more = importlib.import_module(module)
            forms |= more.forms(problem.model, *data, problem.loss, options_for(problem))
    return forms


@pytest.mark.sampled(2)
@each_card
@pytest.mark.parametrize("name", ["linear_regression", "softmax_regression"])
def test_value_is_the_closed_form(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        return
    forms = closed_forms(name, card.family)
    assert card.name in forms, "a new measure needs its closed form in tests/measures/forms"
    if forms[card.name] is None:  # there is none: its family's own tests have the reference
        return
    found, expected = usual(card, problem).whole, float(forms[card.name])
    apart = abs(found.value - expected)
    assert apart <= margin(found, rel=1e-12, probes=True)
    if card.found_by == "products" and found.residual is not None:
        # the error of an extreme Ritz value is residual²/gap: 1e-12 of λ_max, times λ_max/gap
        assert apart <= 1e-10 * abs(float(forms["curvature.lambda_max"]))


def test_whole_is_the_sum_or_the_maximum_of_the_layers():
    problem = problem_named("relu_convnet")
    few = {"draws": 4, "ascent_steps": 2, "restarts": 0}  # searches that have no layers
    options = Options(**vars(options_for(problem)) | few)
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
        assert report[name].text == f"layer {top!r}"
        assert report[name].value == rows[top].value


# -- 8. the same claims where the exact measures are estimated ----------------------------------


def cut_otherwise(problem):
    """Other batches, the samples in the same order: each keeps its number and so its signs."""
    x, y = problem.inputs(), problem.targets()
    return dataclasses.replace(problem, data=list(zip(x.split(3), y.split(3), strict=True)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", ["output_probes", "hutchinson", "hutch++"])
@pytest.mark.parametrize("card", [c for c in CARDS if c.needs.sweep], ids=lambda c: c.name)
def test_estimates_agree_with_the_exact_value(card, method, generator):
    problem = problem_named("relu_mlp")
    # few passes: the claims hold at any precision, also one that is not the one asked for
    options = {"precision": Precision(method, max_passes=24), "seed": 1}
    found, exact = whole_of(card, problem, **options), usual(card, problem).whole
    assert exact.exact
    check_error_bars(found)
    if card.name == "curvature.ggn_trace" and method != "output_probes":
        assert found.exact  # weight probes are of the Hessian: the GGN stays with the sweep
    elif method != "hutch++":  # whose directions may span all that a small network has
        assert found.stderr is not None
    check_agree(found, exact, probes=True)
    assert whole_of(card, problem, **options).value == found.value
    check_agree(whole_of(card, cut_otherwise(problem), **options), found)
    moved = whole_of(card, permute_units(problem, generator), **options)
    check_agree(moved, found, probes=True)
