"""What a measure says it costs, before it runs, is what is counted when it has run."""

import pytest
import torch
from torch import nn

import spiritlevel as sl

SPARE = 3.5  # forwards: the plan, the certificate and the unperturbed loss, on top of the passes
SEARCHING = [card.name for card in sl.cards() if card.further_cost is not None]


@pytest.fixture(scope="module")
def problem():
    """A network that is good at its data, so that searches have something to find."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), (x, y)


def test_searches_and_draws_all_say_what_they_take():
    """By hand: whatever a card calls more than the shared pass, except what shares it."""
    assert set(SEARCHING) == {
        *(f"sharpness.{end}" for end in ("worst", "adaptive", "m_worst", "adaptive_m_worst")),
        *("sharpness.average", "sharpness.adaptive_average"),
        *("pac_bayes.sigma", "pac_bayes.magnitude"),
        *("norms.fisher_rao", "norms.fisher_rao_model", "norms.fisher_rao_closed"),
        "activity.gradient_norm",
        *("sensitivity.jacobian", "sensitivity.jacobian_outside"),
        *(f"decomposition.{end}" for end in ("centered", "path_lambda_max", "upper_bound")),
        *(f"bound.{end}" for end in ("representativeness", "c1", "c2", "generalization")),
    }


@pytest.mark.parametrize(
    "name", [name for name in SEARCHING if name != "sensitivity.jacobian_outside"]
)
def test_the_cost_said_beforehand_bounds_the_cost_counted(problem, name):
    model, data = problem
    plan = sl.preflight(model, data, measures=name)
    cost = sl.measure(model, data, measures=name).cost
    samples = len(data[0])
    said = plan.cost_per_sample + plan.further[name]
    assert cost.forwards <= samples * (said.forwards + SPARE)
    assert cost.backwards <= samples * (said.backwards + 1.5)
    assert "plus up to" in str(plan)
    assert name in str(plan)


@pytest.mark.parametrize("name", ["sharpness.average", "pac_bayes.sigma"])
def test_what_is_said_is_not_far_beyond_what_is_counted(problem, name):
    model, data = problem
    said = sl.preflight(model, data, measures=name).further[name].forwards
    counted = sl.measure(model, data, measures=name).cost.forwards / len(data[0])
    assert said < 4 * counted


def test_options_change_what_is_said(problem):
    options = {"ascent_steps": 5, "restarts": 1}
    plan = sl.preflight(*problem, measures="sharpness.worst", options=options)
    assert plan.further["sharpness.worst"] == sl.results.Cost(forwards=11, backwards=11)
    assert "plus up to 11 forwards, 11 backwards per sample for sharpness.worst" in str(plan)


def test_nothing_further_is_said_of_plain_sweeps(problem):
    plan = sl.preflight(*problem, measures=["curvature.trace", "head.kappa"])
    assert plan.further == {}
    assert "plus up to" not in str(plan)
