"""The cards' claims about moves of BatchNorm and attention, on networks that have them.

Everything is measured in one call before a move and one after it: every measure of the catalogue
is compared, and the claims are those of the contract suite, unchanged or moved.
"""

import functools

import pytest
import torch

import spiritlevel as sl
from measures import move_problems
from spiritlevel import symmetries
from spiritlevel.measures import get, names
from spiritlevel.measures.norms.homogeneity import check_homogeneous

# So that every measure can be computed; few draws and steps, since the claims hold for any number.
OPTIONS = {
    "m": 3,
    "region": (1, 1, 2, 2),
    "bandwidth": 1.0,
    "sigma": 0.1,
    "target": "loss",
    "draws": 4,
    "ascent_steps": 6,
    "restarts": 0,
    "weight_decay": 0.1,
}
PASSES = 20
HOMOGENEOUS = [name for name in names() if check_homogeneous in get(name).requires]
OTHERS = [name for name in names() if name not in HOMOGENEOUS]


def measured(problem, measures):
    draw = torch.Generator().manual_seed(9)
    initial = {
        key: torch.randn(value.shape, generator=draw, dtype=torch.float64)
        for key, value in problem.model.named_parameters()
    }
    return sl.measure(
        problem.model,
        problem.data,
        measures=measures,
        options={**OPTIONS, "initial": initial},
        max_passes=PASSES,
    )


@functools.cache
def problems(move, homogeneous):
    """Before and after; finding a move takes as long as measuring."""
    problem = move_problems.problem_with(move)
    if homogeneous:
        problem = move_problems.without_biases(problem)
    return problem, move_problems.after(move, problem, torch.Generator().manual_seed(0))


@functools.cache
def reports(move, homogeneous):
    """Before and after."""
    chosen = HOMOGENEOUS if homogeneous else OTHERS
    return tuple(measured(problem, chosen) for problem in problems(move, homogeneous))


def test_both_suites_together_make_every_claimed_move():
    elsewhere = {"layer_rescale", "neuron_rescale", "unit_permute", "batch_split"}
    assert elsewhere | set(move_problems.NETWORKS) == set(symmetries.SYMMETRIES)
    assert set(symmetries.SYMMETRIES) - {"batch_split"} <= set(symmetries.FUNCTION_PRESERVING)


@pytest.mark.parametrize("move", move_problems.NETWORKS)
@pytest.mark.parametrize("homogeneous", [False, True], ids=["", "no biases"])
def test_a_move_keeps_the_function_and_changes_the_weights(move, homogeneous):
    problem, moved = problems(move, homogeneous)
    x = problem.inputs()
    torch.testing.assert_close(moved.model(x), problem.model(x), rtol=1e-10, atol=1e-12)
    layers = {"batchnorm_absorb": ("0", "3")}.get(move, ("0.value", "0.out"))
    for layer in layers:
        before, now = (p.model.get_submodule(layer).weight for p in (problem, moved))
        assert not torch.allclose(before, now, rtol=0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("move", move_problems.NETWORKS)
def test_value_is_unchanged_by_exactly_the_moves_on_the_card(move, name):
    before, after = (report[name] for report in reports(move, name in HOMOGENEOUS))
    apart = abs(after.value - before.value)
    residuals = (before.residual or 0.0) + (after.residual or 0.0)
    if move in get(name).invariant:
        assert apart <= 1e-8 * abs(before.value) + residuals, (before.value, after.value)
    else:
        assert apart > 1e-3 * abs(before.value) + residuals, (before.value, after.value)
