"""An audit within a budget: on fewer samples, with the verdicts of all of them."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.measures.setup import Setup
from spiritlevel.verbs.audit import Audit
from spiritlevel.verbs.audit.moving import OutputCheck

COUNT, BUDGET = 400, 25.0
CHOSEN = ["curvature.trace", "relative.kappa", "neuron.rho_sum", "sharpness.worst"]


@pytest.fixture(scope="module")
def problem():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(COUNT, 6, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
    y = torch.randint(4, (COUNT,), generator=generator)
    return model, (x, y)


@pytest.fixture(scope="module")
def within(problem):
    """The audit within the budget, and what was told of it beforehand."""
    told = []
    model, data = problem

    def tell(done, total, text):
        told.append(text)

    return sl.audit(model, data, measures=CHOSEN, budget=BUDGET, progress=tell), told


def counted(cost):
    """By hand: a forward is a third of a forward-backward, a product four of them."""
    return (cost.forwards / 3 + cost.backwards * 2 / 3 + cost.products * 4 / 3) / COUNT


def test_the_verdicts_are_those_of_an_audit_on_all_samples(problem, within):
    model, data = problem
    few = {"ascent_steps": 5, "restarts": 0}
    whole = sl.audit(model, data, measures=CHOSEN, budget=math.inf, options=few)
    found, _ = within
    assert whole.measured_on == ""
    assert found.measured_on.endswith(f" of the {COUNT} samples")
    for name in CHOSEN:
        assert found.verdict(name).kind == whole.verdict(name).kind, name
    # a sum over samples: exact on both, and the factor of one layer is the same for every sample
    move = "layer_rescale"
    assert found.factor("neuron.rho_sum", move) == pytest.approx(1.0, rel=1e-3)
    assert found.factor("curvature.trace", move) == pytest.approx(
        whole.factor("curvature.trace", move), rel=0.3
    )


def test_the_budget_is_kept_and_the_plan_comes_near(within):
    found, told = within
    [plan] = [text for text in told if text.startswith("planned: ")]
    said = float(plan.split("about ")[1].split()[0])
    assert counted(found.cost) <= BUDGET
    assert said / 1.5 <= counted(found.cost) <= 1.5 * said
    assert f"the budget is {BUDGET:g}" in plan


def test_what_shows_a_large_change_is_not_searched_again(within):
    found, _ = within
    moves = [move for move in found.moved if len(found.moved[move]) > 1]
    settled = [m for m in moves if len(found.draws_of("sharpness.worst", m)) < len(found.moved[m])]
    assert settled
    for move in settled:
        assert not 0.5 < found.factor("sharpness.worst", move) < 2
    assert Audit.from_json(found.to_json()).verdicts == found.verdicts


def test_what_is_too_dear_is_left_out_and_named(problem):
    model, data = problem
    found = sl.audit(model, data, measures=["head.trace", "sharpness.worst"], budget=9)
    assert "sharpness.worst" not in found.original
    assert found.left_out["sharpness.worst"] > 0
    [line] = [line for line in found.findings() if line.startswith("Left out")]
    assert "sharpness.worst (about " in line


@pytest.mark.parametrize("shuffle", [False, True])
def test_kept_outputs_are_compared_only_where_the_order_is_known(problem, shuffle):
    model, data = problem
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(*data), 50, shuffle=shuffle, generator=generator)
    check = OutputCheck(Setup(), model, loader, lambda outputs: outputs)
    assert [check.deviation(model, 1.0) for _ in range(3)] == [0.0] * 3
    assert check.deviation(model, 2.0) == pytest.approx(0.5)
    # the original runs once, or beside every copy
    assert check.cost.forwards // COUNT == (8 if shuffle else 5)
