"""What a measure says it costs, before it runs, is what is counted when it has run."""

import pytest
import torch
from torch import nn

import spiritlevel as sl

SPARE = 3.5  # forwards: the plan, the certificate and the unperturbed loss, on top of the passes
SEARCHING = [card.name for card in sl.cards() if card.further_cost is not None]


def total(cost):
    return cost.forwards + cost.backwards + cost.products


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
        *("pac_bayes.sigma", "pac_bayes.magnitude", "pac_bayes.bound"),
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


@pytest.mark.parametrize(
    "names",
    [
        ["pac_bayes.sigma", "pac_bayes.bound", "pac_bayes.magnitude"],
        ["decomposition.*", "sensitivity.jacobian"],
        ["bound.*"],
        ["norms.fisher_rao*"],
    ],
    ids=str,
)
def test_work_that_measures_share_is_said_once(problem, names):
    """What is not said twice is what is saved, up to what every measurement does first."""
    model, data = problem
    plan = sl.preflight(model, data, measures=names)
    base = sl.measure(model, data, measures="softmax.gini").cost
    alone = [sl.measure(model, data, measures=name).cost - base for name in plan.measures]
    together = sl.measure(model, data, measures=names).cost - base
    saved = total(sum(alone, sl.results.Cost()) - together)
    said_once = total(sum(plan.further.values(), sl.results.Cost()) - plan.further_in_all)
    samples = len(data[0])
    assert said_once * samples == pytest.approx(saved, rel=0.2)
    assert together.forwards <= samples * (plan.further_in_all.forwards + SPARE)
    assert f"plus up to {plan.further_in_all.passes(1)} per sample for" in str(plan)


def test_options_change_what_is_said(problem):
    options = {"ascent_steps": 5, "restarts": 1}
    plan = sl.preflight(*problem, measures="sharpness.worst", options=options)
    assert plan.further["sharpness.worst"] == sl.results.Cost(forwards=11, backwards=11)
    assert "plus up to 11 forwards, 11 backwards per sample for sharpness.worst" in str(plan)


def test_nothing_further_is_said_of_plain_sweeps(problem):
    plan = sl.preflight(*problem, measures=["curvature.trace", "head.kappa"])
    assert plan.further == {}
    assert "plus up to" not in str(plan)


def bent(samples=1000, classes=3):
    """A network in which nearly everything bends, large enough for sample probes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = [nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 100), nn.GELU()]
        model = nn.Sequential(*inner, nn.Linear(100, classes)).eval()
    x = torch.randn(samples, 40, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model, (x, model(x))  # fits: the Hessian has no near-cancellation


@pytest.mark.parametrize(
    ("measures", "kinds", "pass_for_others"),
    [
        (["curvature.trace"], 1, 0),
        (["relative.kappa"], 1, 0),
        (["curvature.trace", "scaled.trace_max"], 1, 0),  # both of the same probes
        (["curvature.trace", "relative.kappa", "head.trace"], 2, 1),
    ],
)
def test_no_sweep_is_said_where_sample_probes_come_first(measures, kinds, pass_for_others):
    model, data = bent()
    plan = sl.preflight(model, data, measures=measures, loss="mse")
    said = sl.results.Cost(kinds + pass_for_others, kinds, 2 * kinds)
    assert plan.cost_per_sample == said
    assert plan.num_probes is None
    assert plan.num_sample_probes == 2
    assert "2 sample probes of each kind of value" in str(plan)
    # so wide that two probes are enough: what is said first is then all that is done
    report = sl.measure(model, data, measures=measures, loss="mse", rtol=0.9)
    for name in measures:
        assert name == "head.trace" or "2 sample probes" in report[name].text
    cost, samples = report.cost, len(data[0])
    few = 150  # samples that the plan and the look at derivatives run
    assert samples * said.forwards <= cost.forwards <= samples * said.forwards + few
    assert samples * said.backwards <= cost.backwards <= samples * said.backwards + few
    assert cost.products == samples * said.products


@pytest.mark.parametrize("method", ["exact", "split", "output_probes"])
def test_a_sweep_is_said_where_one_is_asked_for(method):
    model, data = bent()
    plan = sl.preflight(model, data, measures="curvature.trace", loss="mse", method=method)
    assert plan.num_sample_probes is None
    assert plan.cost_per_sample.backwards >= 2
