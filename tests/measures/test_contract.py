"""Every claim on every card is executed: measure × check, ids readable with `pytest -k`."""

import copy
import dataclasses
import math
import pathlib

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import problems, symmetries
from spiritlevel.estimators.work import Work
from spiritlevel.losses import CrossEntropy, resolve
from spiritlevel.measures import Measured, get, measure, names
from spiritlevel.surface import Surface

CARDS = [get(name) for name in names()]
LANCZOS = {"head.lambda_max"}  # an iteration stops at a residual, not at round-off


def problem_named(name, dtype=torch.float64):
    return problems.ALL[name](dtype)


def work_on(problem, **options):
    surface = Surface(problem.model, problem.data, loss=problem.loss)
    return Work(surface, **options)


def measured(card, problem, **options):
    """The measure alone, as its function gives it."""
    work = work_on(problem, **options)
    work.want(card.needs)
    with work.surface.preserved():
        return card.function(work)


def value_of(card, problem, **options):
    return measured(card, problem, **options).whole.value


def applies(card, problem):
    """Only the softmax measures ask for a loss."""
    return not card.needs.softmax or isinstance(resolve(problem.loss), CrossEntropy)


def round_off(card, dtype=torch.float64):
    if dtype is torch.float32:
        return 1e-4  # 7 digits through a few layers of sums
    # Lanczos: a Ritz value is within its residual, 1e-10 relative, and moves are larger than that
    return 1e-6 if card.name in LANCZOS else 1e-8


each_card = pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
each_problem = pytest.mark.parametrize("name", problems.ALL)


# -- 1. the card --------------------------------------------------------------------------------


def test_the_registry_is_not_empty():
    assert len(CARDS) >= 11


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
def test_name_is_family_dot_variant_and_the_family_is_the_file(card):
    family, variant = card.name.split(".")
    assert variant.isidentifier()
    module = card.function.__module__
    assert module == f"spiritlevel.measures.{family}"
    assert pathlib.Path(card.function.__code__.co_filename).stem == family == card.family


@each_card
def test_results_carry_the_name_and_the_settings(card):
    problem = problem_named("relu_mlp")
    result = measured(card, problem)
    for found in [result.whole, *result.layers.values()]:
        assert found.name == card.name
        assert found.settings["loss"] == "cross_entropy"
        assert found.settings["num_samples"] == 8
        assert found.settings["dtype"] == "float64"
        assert found.exact


# -- 2. finite, in both precisions --------------------------------------------------------------


@each_card
@each_problem
def test_finite_and_the_same_in_both_precisions(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        with pytest.raises(sl.SpiritlevelError, match=f"{card.name}.*cross_entropy.*Got 'mse'"):
            measured(card, problem)
        return
    double = value_of(card, problem)
    single = value_of(card, problem_named(name, torch.float32))
    assert math.isfinite(double)
    assert double > 0  # nothing on these problems is flat
    assert single == pytest.approx(double, rel=round_off(card, torch.float32))


# -- 3. state -----------------------------------------------------------------------------------


@each_card
def test_state_is_untouched(card):
    problem = problem_named("relu_convnet")
    model = problem.model
    model[1].train()
    model[5].bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = copy.deepcopy(model)
    rng = torch.random.get_rng_state()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    value_of(card, problem)
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


@each_card
def test_the_same_seed_gives_the_same_value(card):
    problem = problem_named("relu_mlp")
    first = value_of(card, problem, seed=3)
    torch.rand(5)  # the global random state has no say
    assert value_of(card, problem, seed=3) == first
    # all measures here are exact: another seed changes nothing beyond their round-off
    assert value_of(card, problem, seed=4) == pytest.approx(first, rel=round_off(card))


# -- 5. symmetries ------------------------------------------------------------------------------


def factors(size, generator):
    """Between 5 and 25: far from 1, so that what moves moves visibly."""
    return 5 + 20 * torch.rand(size, generator=generator, dtype=torch.float64)


def rescale_layers(problem, generator):
    model = problem.model
    for producer, consumer in problem.pairs:
        factor = float(factors(1, generator))
        model = symmetries.rescale_layers(model, producer, consumer, factor)
    return dataclasses.replace(problem, model=model)


def rescale_neurons(problem, generator):
    model = problem.model
    for producer, consumer in problem.pairs:
        width = len(model.get_submodule(producer).weight)
        scale = factors(width, generator)
        model = symmetries.rescale_neurons(model, producer, consumer, scale)
    return dataclasses.replace(problem, model=model)


def permute_units(problem, generator):
    model = problem.model
    for producer, consumer in problem.pairs:
        width = len(model.get_submodule(producer).weight)
        order = torch.arange(width).roll(1)  # leaves no unit where it was
        model = symmetries.permute_units(model, producer, consumer, order)
    return dataclasses.replace(problem, model=model)


def split_batches(problem, generator):
    x, y = problem.inputs(), problem.targets()
    order = torch.randperm(len(x), generator=generator)
    data = [(x[part], y[part]) for part in order.split([2, 5, 1])]
    return dataclasses.replace(problem, data=data)


MOVES = {
    "layer_rescale": rescale_layers,
    "neuron_rescale": rescale_neurons,
    "unit_permute": permute_units,
    "batch_split": split_batches,
}


def test_every_symmetry_has_a_move():
    assert set(MOVES) == set(symmetries.SYMMETRIES)


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


@each_card
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ["relu_mlp", "relu_convnet"])
def test_value_is_unchanged_by_exactly_the_symmetries_on_the_card(card, move, name, generator):
    problem = problem_named(name)
    before = value_of(card, problem)
    after = value_of(card, MOVES[move](problem, generator))
    if move in card.invariant:
        assert after == pytest.approx(before, rel=round_off(card), abs=0)
    else:  # moved by much more than any tolerance
        assert abs(after / before - 1) > 1e-3


# -- 6. cost ------------------------------------------------------------------------------------


@each_card
@each_problem
def test_planned_cost_is_the_counted_cost(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        return
    work = work_on(problem)
    work.want(card.needs)
    planned = card.cost(work.plan, 8)
    counted = []

    def count(module, args, output):
        counted.append(len(output))

    handle = problem.model.register_forward_hook(count)
    run = work.run(card.needs)
    handle.remove()
    result = card.function(work)
    assert run.cost == planned
    assert result.whole.cost.forwards == planned.forwards
    assert result.whole.cost.backwards == planned.backwards
    assert sum(counted) == planned.forwards  # what really went through the model
    columns = {"mse": 2, "cross_entropy": 2}[problem.loss]
    assert planned.backwards == (8 * columns if card.needs.sweep else 0)


# -- 7. closed forms ----------------------------------------------------------------------------


def dense_head(problem):
    """Hessian of the weights, rows one after the other, from its textbook formula."""
    x = problem.inputs()
    outputs = problem.model(x).detach()
    if problem.loss == "mse":
        A = [torch.eye(2, dtype=torch.float64)] * len(x)  # 2/C on the diagonal, C = 2
    else:
        A = [torch.diag(p) - torch.outer(p, p) for p in outputs.softmax(dim=1)]
    blocks = [torch.kron(a, torch.outer(v, v)) for a, v in zip(A, x, strict=True)]
    return torch.stack(blocks).mean(dim=0), torch.stack(A)


def closed_forms(problem):
    x, W = problem.inputs(), problem.model.weight.detach()
    H, A = dense_head(problem)
    squares, ones = x.square().sum(dim=1), torch.ones(len(x), dtype=torch.float64)
    traces = torch.stack([a.trace() for a in A])
    weights = (traces * squares).mean()
    whole = (traces * (squares + ones)).mean()  # the bias sees an input of 1
    kappa = (torch.stack([(W.T @ a @ W).trace() for a in A]) * squares).mean()
    rho = torch.stack(
        [
            torch.stack(
                [v[j] ** 2 * (W[:, j] @ a @ W[:, j]) for a, v in zip(A, x, strict=True)]
            ).mean()
            for j in range(x.shape[1])
        ]
    )
    forms = {
        "curvature.trace": whole,
        "curvature.ggn_trace": whole,
        "head.trace": weights,
        "head.kappa": kappa,
        "head.trace_squared": H.square().sum(),
        "head.lambda_max": torch.linalg.eigvalsh(H)[-1],
        "relative.kappa": kappa,
        "relative.kappa_max": kappa,  # one layer
        "scaled.trace": W.square().sum() * weights,
        "scaled.trace_max": W.square().sum() * weights,
        "neuron.rho_sum": rho.sum(),
        "neuron.rho_max": rho.max(),
    }
    if problem.loss == "cross_entropy":
        forms["softmax.gini"] = traces.mean()
    return forms


@each_card
@pytest.mark.parametrize("name", ["linear_regression", "softmax_regression"])
def test_value_is_the_closed_form(card, name):
    problem = problem_named(name)
    if not applies(card, problem):
        return
    forms = closed_forms(problem)
    assert card.name in forms, "a new measure needs its closed form on these problems here"
    expected = float(forms[card.name])
    # 1e-10 is the residual at which Lanczos stops
    rel = 1e-10 if card.name in LANCZOS else 1e-12
    assert value_of(card, problem) == pytest.approx(expected, rel=rel, abs=0)


def test_whole_is_the_sum_or_the_maximum_of_the_layers():
    problem = problem_named("relu_convnet")
    report = sl.measure(problem.model, problem.data, measures="*.*")
    for name, rows in report.layers.items():
        values = [m.value for m in rows.values()]
        expected = max(values) if name.endswith("_max") else sum(values)
        assert report[name].value == pytest.approx(expected, rel=1e-12), name


def test_maximum_names_its_layer():
    problem = problem_named("relu_mlp")
    report = sl.measure(problem.model, problem.data, measures=["relative.*", "scaled.*"])
    for name in ("relative.kappa_max", "scaled.trace_max"):
        rows = report.layers[name.removesuffix("_max")]
        top = max(rows, key=lambda layer: rows[layer].value)
        assert report[name].text == f"layer {top!r}"
        assert report[name].value == rows[top].value


# -- the registry -------------------------------------------------------------------------------


def test_a_name_is_taken_only_once():
    card = CARDS[0]
    fields = {f.name: getattr(card, f.name) for f in dataclasses.fields(card)}
    function = fields.pop("function")
    with pytest.raises(sl.SpiritlevelError, match=f"'{card.name}' is registered twice"):
        measure(**fields)(function)


def test_a_claim_about_an_unknown_symmetry_is_refused():
    fields = {f.name: getattr(CARDS[0], f.name) for f in dataclasses.fields(CARDS[0])}
    del fields["function"]
    fields |= {"name": "mine.new", "invariant": {"rotation"}}
    with pytest.raises(sl.SpiritlevelError, match=r"'mine.new' claims unknown .*\['rotation'\]"):
        measure(**fields)


def test_a_users_own_measure_takes_part(monkeypatch):
    registry = measure.__globals__
    monkeypatch.setitem(registry, "_CARDS", dict(registry["_CARDS"]))

    @measure(
        name="mine.size",
        summary="Number of weights",
        formula="d",
        paper="none",
        invariant=set(symmetries.SYMMETRIES),
        misleads="Always.",
        needs=get("softmax.gini").needs,
    )
    def size(work):
        count = sum(p.numel() for p in work.surface.parameters.values())
        return Measured(sl.Measurement("mine.size", float(count), exact=True))

    problem = problem_named("softmax_regression")
    report = sl.measure(problem.model, problem.data, measures="mine.*")
    assert report["mine.size"].value == 15.0
    assert isinstance(problem.model, nn.Linear)
