"""What a card claims: each claim is a function that raises an AssertionError where it is false."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.precision import Method, Precision
from ..ground.errors import SpiritlevelError
from ..measures.options import Options
from ..records.measurements import Cost
from ..symmetries import SYMMETRIES
from ..verbs import measuring as api
from ..verbs.reference_problems import Problem
from .moves import before_and_after, moved, problem_named
from .references import linear_model_forms
from .under_test import ROUND_OFF, UnderTest, agree, claim, error_bars, margin

# model, inputs, targets, name of the loss, options -> the values of measures, by name
ClosedForm = Callable[
    [nn.Module, Tensor, Tensor, str, Options], Mapping[str, Tensor | float | None]
]
BENT = "attention"  # untrained, it bends in nearly all weights: its Hessian has both signs
SAMPLES, COLUMNS = 8, 2  # of the reference problems: COLUMNS backwards a sample give the GGN


def card_is_complete(measure: UnderTest) -> None:
    """Every text is there, as a sentence or as a phrase, and the formula can be typeset."""
    card = measure.card
    for field in ("name", "summary", "formula", "paper", "misleads"):
        claim(bool(getattr(card, field).strip()), f"the card's {field!r} is empty")
    claim(card.misleads.endswith("."), "'misleads' is made of sentences: it ends with a period")
    claim(not card.summary.endswith("."), "'summary' is a phrase: it ends without a period")
    claim("\n" not in card.formula, "the formula is more than one line")
    claim(card.invariant <= set(SYMMETRIES), "'invariant' names an unknown symmetry")
    claim(bool(card.function.__doc__), "the function has no docstring")
    claim(bool(card.cost_in_words()), "the cost is empty")
    family, _, variant = card.name.partition(".")
    named = family == card.family and variant.isidentifier()
    claim(named, f"the name must be family.variant, and not {card.name!r}")
    for pair in ("{}", "()", (r"\bigl", r"\bigr"), (r"\Bigl", r"\Bigr")):
        opening, closing = (card.formula.count(bracket) for bracket in pair)
        claim(opening == closing, f"the formula has {opening} {pair[0]} and {closing} {pair[1]}")


def results_carry_name_and_settings(measure: UnderTest) -> None:
    """Of the network and of each layer; and the values are exact, or say how far off."""
    result = measure.usual(measure.chain())
    expected = {"loss": "cross_entropy", "num_samples": SAMPLES, "dtype": "float64"}
    expected["method"] = "auto"
    for found in [result.whole, *result.layers.values()]:
        claim(found.name == measure.card.name, f"a result is called {found.name!r}")
        for key, value in expected.items():
            came = found.settings[key]
            claim(came == value, f"the setting {key!r} is {came!r}, and not {value!r}")
        error_bars(measure.card, found)
    drawn = result.whole.stderr is not None
    claim(
        drawn == measure.is_estimate,
        f"found_by is {measure.card.found_by!r}, and it has {'a' if drawn else 'no'} stderr",
    )
    if result.whole.exact:
        claim(all(m.exact for m in result.layers.values()), "the sum of estimates is exact")


def state_is_untouched(measure: UnderTest) -> None:
    """Parameters, their gradients, modes, hooks and random numbers are as before."""
    problem = measure.suitable("relu_convnet")
    claim(problem is not None, "it does not apply to a convolutional network")
    assert problem is not None
    assert isinstance(problem.model, nn.Sequential)
    model = problem.model
    model[1].train()
    model[5].weight.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before, numbers, hooks = copy.deepcopy(model), torch.random.get_rng_state(), _hooks(model)
    measure.measured(problem)
    claim(torch.equal(torch.random.get_rng_state(), numbers), "it drew from torch's generator")
    claim(_hooks(model) == hooks, "it left a hook on a module, or removed one")
    modes = zip(model.modules(), before.modules(), strict=True)
    claim(all(now.training == then.training for now, then in modes), "modules changed mode")
    then = dict(before.named_parameters())
    for name, now in model.named_parameters():
        claim(torch.equal(now, then[name]), f"the parameter {name!r} changed")
        kept = now.requires_grad == then[name].requires_grad
        claim(kept, f"requires_grad of {name!r} changed")
        untouched = now.grad is not None and torch.equal(now.grad, torch.full_like(now, 3.0))
        claim(untouched, f"the gradient of {name!r} changed")


def the_same_seed_gives_the_same_value(measure: UnderTest) -> None:
    """Whatever torch's own generator does; and another seed gives another value of a draw."""
    problem = measure.chain()
    first = measure.whole(problem, seed=3)
    torch.rand(5)  # the global random state has no say
    again, other = measure.whole(problem, seed=3), measure.usual(problem).whole
    same = again.value == first.value
    claim(same, f"one seed gave {first.value!r} and {again.value!r}")
    agree(first, other, "with another seed", probes=measure.is_estimate)
    if measure.is_estimate:
        claim(other.value != first.value, "the seed does nothing, and found_by is 'draws'")


def finite_and_the_same_in_both_precisions(measure: UnderTest, network: str) -> None:
    """A measure that does not apply is refused, with its name or the option that it needs."""
    problem = problem_named(network)
    if not measure.applies(problem):
        _refused(measure, problem)
        return
    double = measure.usual(problem).whole
    single = measure.whole(problem_named(network, torch.float32))
    claim(math.isfinite(double.value), f"it is {double.value}")
    # the signs of a probe do not depend on the precision, so estimates agree like exact values
    agree(double, single, "in float32", rel=ROUND_OFF[torch.float32])


def _refused(measure: UnderTest, problem: Problem) -> None:
    name = measure.card.name
    try:
        api.measure(problem.model, problem.data, loss=problem.loss, measures=name)
    except SpiritlevelError as error:
        named = name in str(error) or "option" in str(error)
        claim(named, f"it is refused without its name, or that of an option: {error}")
    else:
        claim(False, "a requirement is not met, and it is measured all the same")


def moves_as_the_card_says(measure: UnderTest, move: str, network: str) -> None:
    """Unchanged if the card says so, and otherwise moved by much more than any tolerance."""
    first = measure.suitable(network)
    if first is None:
        measure.chain()  # it applies to another at least
        return
    biases = not first.name.endswith("biases")
    problem, after_it = before_and_after(move, network, biases=biases)
    before, after = measure.usual(problem).whole, measure.whole(after_it)
    # The signs of a probe follow the order of the parameters, so units that change places get
    # other ones: the value is then the same in distribution, as where samples change their
    # order, or where noise is drawn in the logits. Other moves leave every parameter its sign.
    probes = move in ("unit_permute", "batch_split") and measure.is_estimate
    if move in measure.card.invariant:
        redrawn = probes or (move == "logit_shift" and measure.is_estimate)
        agree(before, after, f"after {move}", probes=redrawn)
        return
    apart = abs(after.value - before.value)
    least = 1e-3 * abs(before.value) + margin(before, after, rel=0.0, probes=probes)
    claim(
        apart > least,
        f"{move} is not in 'invariant', and leaves {before.value!r} at {after.value!r}",
    )


def planned_cost_is_the_counted_cost(measure: UnderTest, network: str) -> None:
    """As counted by the workspace, and by a hook on the model."""
    problem = problem_named(network)
    if not measure.applies(problem):
        return
    card, workspace = measure.card, measure.work_on(problem)
    planned, counted = card.cost(workspace.plan, SAMPLES), list[int]()
    problem.model.register_forward_hook(lambda _, args, output: counted.append(len(output)))
    run = workspace.run(card.needs)
    # the features' scales are found before the pass itself
    looked = Cost(forwards=SAMPLES * card.needs.standardized)
    # parts of a packed weight are looked up: two backwards for each new length of batch
    routed = Cost(backwards=2 * (4 + 3) * (network == BENT) * card.needs.sweep)
    came = run.cost + looked
    claim(came == planned + routed, f"the pass cost {came}, and {planned} was planned")
    went = sum(counted)  # what really went through the model
    claim(went == planned.forwards, f"{went} forwards, and {planned.forwards} were planned")
    swept = SAMPLES * COLUMNS if card.needs.sweep else 0
    claim(planned.backwards == swept, f"{planned.backwards} backwards are planned")
    if network == BENT:
        return  # probes follow, as many as they need
    _ = run.doubts  # a second look, and tests of the derivatives, belong to no measure
    if card.needs.products:
        _ = workspace.products
    counted.clear()
    before = workspace.cost
    cost, went = card.function(workspace).whole.cost, sum(counted)
    if card.cost_text:  # more than the shared pass, all of it counted
        in_order = went <= (workspace.cost - before).forwards <= cost.forwards
        claim(in_order, f"{went} forwards beyond the pass, and its cost is {cost}")
    elif card.needs.products:  # the pass is not part of it; planned are only its own runs
        paired = went == cost.forwards == cost.backwards
        claim(paired, f"{went} forwards beyond the pass, and its cost is {cost}")
        claim(cost.products > 0, "it cost no product")
        claim(cost.products % SAMPLES == 0, f"it cost {cost.products} products of samples")
    else:
        plain = (cost.forwards, cost.backwards) == (planned.forwards, planned.backwards)
        claim(plain, f"its cost is {cost}, and {planned} was planned")


def value_is_the_closed_form(measure: UnderTest, network: str, closed_form: ClosedForm) -> None:
    """Of one linear layer."""
    problem = problem_named(network)
    if not measure.applies(problem):
        return
    x, y, options = problem.inputs(), problem.targets(), measure.options(problem)
    forms = closed_form(problem.model, x, y, problem.loss, options)
    claim(measure.card.name in forms, f"its closed form is missing, with the loss {problem.loss!r}")
    form = forms[measure.card.name]
    if form is None:  # there is none
        return
    found = measure.usual(problem).whole
    apart = abs(found.value - float(form))
    near = apart <= margin(found, rel=1e-12, probes=True)
    claim(near, f"it is {found.value!r}, and {float(form)!r} by its closed form")
    if measure.card.found_by == "products" and found.residual is not None:
        # the error of an extreme Ritz value is residual²/gap: 1e-12 of λ_max, times λ_max/gap
        assert isinstance(problem.model, nn.Linear)
        known = linear_model_forms(problem.model, x, problem.loss)
        near = apart <= 1e-10 * abs(float(known["curvature.lambda_max"]))
        claim(near, f"it is {apart:.2g} off its closed form")


def estimates_agree_with_the_exact_value(measure: UnderTest, method: Method) -> None:
    """The same claims where what is exact here is estimated."""
    problem = problem_named("relu_mlp")
    # few passes: the claims hold at any precision, also one that is not the one asked for
    how: dict[str, Any] = {"precision": Precision(method, max_passes=24), "seed": 1}
    found, exact = measure.whole(problem, **how), measure.usual(problem).whole
    claim(exact.exact, "it is not exact on a piecewise linear network")
    error_bars(measure.card, found)
    if exact.quantity == "GGN" and method != "output_probes":
        claim(found.exact, "weight probes are of the Hessian: the GGN stays with the sweep")
    elif method != "hutch++":  # whose directions may span all that a small network has
        claim(found.stderr is not None, "an estimate has no stderr")
    agree(found, exact, "exactly", probes=True)
    again = measure.whole(problem, **how)
    claim(again.value == found.value, "the same probes gave another value")
    x, y = problem.inputs(), problem.targets()
    # the samples in the same order: each keeps its number and so its signs
    cut = dataclasses.replace(problem, data=list(zip(x.split(3), y.split(3), strict=True)))
    agree(measure.whole(cut, **how), found, "in other batches")
    permuted = measure.whole(moved("unit_permute", problem), **how)
    agree(permuted, found, "after unit_permute", probes=True)


def _hooks(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
