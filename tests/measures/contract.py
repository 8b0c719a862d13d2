"""Problems, options and comparisons of the contract suite, and the moves of its symmetries."""

import copy
import dataclasses
import math

import pytest
import torch

import spiritlevel as sl
from spiritlevel import symmetries
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.engine.workspace import Workspace
from spiritlevel.measures import get
from spiritlevel.measures.options import Options
from spiritlevel.model.surface import Surface

MAXIMUM = r"\max"  # how the formula of a maximum over layers starts


def problem_named(name, dtype=torch.float64):
    return problems.ALL[name](dtype)


def options_for(problem):
    """So that every measure can be computed, and groups of samples are smaller than the data."""
    x = problem.inputs()
    draw = torch.Generator().manual_seed(9)
    initial = {
        name: torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
        for name, p in problem.model.named_parameters()
    }
    region = (1, 1, 2, 2) if x.dim() == 4 else None
    return Options(
        m=3,
        initial=initial,
        region=region,
        bandwidth=1.0,  # under a narrow kernel the loss around a sample is its own, whatever moves
        sigma=0.1,  # and under little noise the rise of the loss drowns in its error bar
        target="loss",  # labels are random here: the error cannot rise
        draws=8,
        ascent_steps=8,  # the claims hold after any number of steps
        restarts=1,
        weight_decay=0.1,
    )


def work_on(problem, **options):
    surface = Surface(problem.model, problem.data, loss=problem.loss)
    return Workspace(surface, options=options_for(problem), **options)


def measured(card, problem, **options):
    """The measure alone, as `sl.measure` gets it."""
    workspace = work_on(problem, **options)
    workspace.want(card.needs)
    with workspace.surface.preserved():
        workspace.run(workspace.wanted)
        return card.function(workspace)


def whole_of(card, problem, **options):
    return measured(card, problem, **options).whole


_USUAL = {}  # results by measure and problem


def usual(card, problem):
    """The measure of a problem just as it was made: the same in every test, so computed once."""
    key = (card.name, problem.name)
    if key not in _USUAL:
        _USUAL[key] = measured(card, problem)
    return _USUAL[key]


_APPLIES = {}  # answers by measure and problem


def applies(card, problem):
    """Whether a problem just as it was made has what the measure requires."""
    key = (card.name, problem.name, problem.inputs().dtype)
    if key not in _APPLIES:
        _APPLIES[key] = _meets_requirements(card, problem)
    return _APPLIES[key]


def _meets_requirements(card, problem):
    workspace = work_on(problem)
    workspace.want(card.needs)
    try:
        with workspace.surface.preserved():
            card.refuse(workspace)
    except sl.SpiritlevelError:
        return False
    return True


def without_biases(problem):
    """A homogeneous network."""
    model = copy.deepcopy(problem.model)
    for module in model:
        if hasattr(module, "bias"):
            module.bias = None
    return dataclasses.replace(problem, name=f"{problem.name} without biases", model=model)


def suitable(card, *names, dtype=torch.float64):
    """The first of these problems that the measure applies to, without biases if need be."""
    found = [problem_named(name, dtype) for name in names]
    found += [without_biases(problem) for problem in found]
    return next((problem for problem in found if applies(card, problem)), None)


def estimated(card):
    """Always by random numbers, whatever the network."""
    return card.found_by == "draws"


ROUND_OFF = {torch.float64: 1e-8, torch.float32: 1e-4}  # 7 digits through a few layers of sums


def margin(*results, rel, probes=False):
    """How far values of one quantity may lie apart.

    Round-off, and the residuals: an eigenvalue lies within its residual. With other probes also 5
    standard errors of the difference, which chance exceeds once in a million.
    """
    spread = 5 * math.hypot(*(m.stderr or 0.0 for m in results)) if probes else 0.0
    largest = max(abs(m.value) for m in results)
    return rel * largest + sum(m.residual or 0.0 for m in results) + spread


def check_agree(one, other, *, rel=ROUND_OFF[torch.float64], probes=False):
    apart = abs(one.value - other.value)
    assert apart <= margin(one, other, rel=rel, probes=probes), (one.value, other.value)


def check_error_bars(found):
    """A value is exact, or says how far it may be off."""
    if found.stderr is not None:
        assert not found.exact
        assert found.stderr > 0
        low, high = found.interval
        assert (low + high) / 2 == pytest.approx(found.value, rel=1e-12)
        half = (high - low) / 2  # at 95 % this is 1.96 standard errors, and more with few probes
        assert half >= 1.95 * found.stderr - 1e-15 * abs(found.value)
        precise = half <= found.settings["rtol"] * abs(found.value)
        # the precision is asked of the sum: layers and their maximum only show their error
        if not get(found.name).formula.startswith(MAXIMUM):
            assert found.status is (
                sl.results.Status.OK if precise else sl.results.Status.NOT_CONVERGED
            )
            assert precise or "max_passes" in found.text  # what to do next
        assert "probes" in found.text or "draws" in found.text
        return
    if get(found.name).found_by == "search" and found.status is sl.results.Status.NOT_CONVERGED:
        assert found.residual > 0
        assert found.text
        return
    assert found.status is sl.results.Status.OK
    assert found.interval is None
    if found.residual is None:
        assert found.exact
    else:
        assert found.residual >= 0
        assert not found.exact or found.residual <= 1e-7 * abs(found.value)


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


MOVES = {  # those that need BatchNorm or attention are in test_contract_moves.py
    "layer_rescale": rescale_layers,
    "neuron_rescale": rescale_neurons,
    "unit_permute": permute_units,
    "batch_split": split_batches,
}
