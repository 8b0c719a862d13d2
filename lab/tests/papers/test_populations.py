"""What experiments on many networks make of rows with a known answer; numbers against scipy."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.claims.population import correlations, whole_catalogue
from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.judgement import TITLE, judged


def population_rows(measures, signs):
    random = numpy.random.default_rng(1)
    rows = []
    for seed in range(60):
        gap = random.normal()
        row = {"outcome": "train_loss", "variant": "sgd", "batch_size": 32, "seed": seed}
        row |= {"gap": gap, "train_loss": random.uniform(0, 0.5), "softmax.gini": random.normal()}
        for name, sign in zip(measures, signs, strict=True):
            row[name] = sign * gap + random.normal()
        rows.append(row)
    return [*rows, rows[0] | {"outcome": "diverged", "gap": math.nan} | dict.fromkeys(measures)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("signs", "agrees"),
    [  # κ, trace, Fisher–Rao, 1/σ², weights, and two that are not in the paper
        ([5, 1, 0, 1, 1, 9, 9], "yes"),
        ([1, 9, 0, 1, 1, 1, 1], "partly"),  # the trace is first
        ([5, 5, 0, 1, 1, 1, 1], "partly"),  # not clearly more than the trace
        ([5, 0, 1, 1, 1, 1, 1], "partly"),  # the trace is last
        ([2, 1, 0, 9, 1, 1, 1], "partly"),  # 1/σ² is first
        ([5, 1, 0, -9, 1, 1, 1], "partly"),  # 1/σ² is last
        ([-1, 1, 1, 1, 1, 1, 1], "no"),
    ],
)
def test_minima_of_lenet(signs, agrees):
    experiment = find("002-fig-5")
    rows = population_rows(experiment.measures, signs)
    for row in rows[:-1]:
        row["pac_bayes.sigma"] = math.exp(row["pac_bayes.sigma"] / 4)
    missed = [row | {"outcome": "epochs", "head.kappa": -9 * row["gap"]} for row in rows[:30]]
    outcome = judged(experiment, [*rows, *missed])
    assert outcome.agrees == agrees
    assert "Over 60 minima " in outcome.conclusion
    assert outcome.left_out.startswith("31 runs, of which 1 diverged, are left out")
    assert "Trained are 60 of 91." in outcome.left_out
    ranked = {cells[0]: cells[3] for cells in outcome.table.rows}
    gap = [row["gap"] for row in rows[:-1]]
    for name in ("head.kappa", "pac_bayes.sigma"):
        own = stats.spearmanr([row[name] for row in rows[:-1]], gap)[0]
        assert (ranked[name].value, ranked[name].n) == (pytest.approx(own), 60)
    assert outcome.more[-1].title == TITLE
    both, _, _ = outcome.more
    for cells, root in zip(both.rows, (1, 2), strict=True):  # the authors' σ is the root of ours
        bounds = []
        for row in rows[:-1]:
            sigma = (1 / row["pac_bayes.sigma"]) ** (0.5 / root)
            bounds.append(row["norms.weight"] ** 2 / (4 * sigma**2) + math.log(500 / sigma))
        assert cells[1] == 60
        assert cells[2].value == pytest.approx(stats.pearsonr(bounds, gap)[0])
        assert cells[3].value == pytest.approx(stats.spearmanr(bounds, gap)[0])


@pytest.mark.parametrize(("sign", "agrees"), [(2, "yes"), (0, "no")])
def test_population_of_resnets(sign, agrees):
    experiment = find("000-table-3")
    rows = population_rows(experiment.measures, [sign, 1, 1, 1, 1])
    rows = [row | {"train_loss": row["train_loss"] / 10} for row in rows]
    for row in rows:
        row["head.kappa"] = row["head.kappa"] and math.exp(row["head.kappa"] / 10)
    outcome = judged(experiment, rows)
    assert outcome.agrees == agrees
    pairs = [(row["head.kappa"], row["gap"]) for row in rows[:-1]]
    found = outcome.reproduced_values["Pearson correlation"]
    assert found.value == pytest.approx(stats.pearsonr(*zip(*pairs, strict=True)).statistic)
    assert set(outcome.reproduced_values) == set(experiment.paper_values)


def test_confounder_takes_a_correlation_away():
    random = numpy.random.default_rng(2)
    loss = random.normal(size=200)
    rows = [
        {"gap": v + e, "m": v + f, "train_loss": v, "softmax.gini": g}
        for v, e, f, g in zip(loss, *random.normal(size=(3, 200)), strict=True)
    ]
    table, ranks = correlations(rows, ["m"])
    assert ranks["m"].low > 0
    [[*_, held, factors]] = table.rows
    assert factors is None  # they are no part of m
    assert held.low < 0 < held.high


def test_whole_catalogue_in_order():
    random = numpy.random.default_rng(3)
    gap = random.normal(size=40)
    noise = random.normal(size=(5, 40))
    measures = {
        "norms.weight": -gap + noise[0],
        "head.kappa": gap + noise[1],
        "curvature.trace": gap + 0.1 * noise[2],
        "head.trace": [*gap[:4], *[None] * 36],  # suits few of them
        "relative.kappa": [None] * 40,  # none
        "no.measure": gap,
    }
    held = {"train_loss": noise[3], "softmax.gini": noise[4]}
    columns = {"gap": gap} | held | measures
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    found = whole_catalogue(rows).rows
    known = {name: stats.spearmanr(values, gap)[0] for name, values in held.items()} | {
        name: stats.spearmanr(measures[name], gap)[0]
        for name in ("norms.weight", "head.kappa", "curvature.trace")
    }
    known.pop("train_loss")  # what is told, not measured
    *order, last = [cells[0] for cells in found]
    assert last == "head.trace"
    assert order == sorted(known, key=known.get, reverse=True)
    for name, n, _, rank, *_ in found[:-1]:
        assert (n, rank.value) == (40, pytest.approx(known[name]))
