"""Populations in which networks of one setting are alike: what tables, texts and verdicts say."""

import math

import numpy
import pytest
import torch
from scipy import stats

import spiritlevel as sl
from publishing.recorded import load
from spiritlevel.measures.confounders import factors_held_fixed
from spiritlevel.records.content import fitted_line
from spiritlevel_lab.claims.findings import estimate
from spiritlevel_lab.claims.population import correlations, scatter, why
from spiritlevel_lab.claims.settings import (
    cautious_partial,
    levels_tables,
    partial_over_settings,
    settings_of,
)
from spiritlevel_lab.papers import find
from spiritlevel_lab.statistics import clustered, partial_correlation

SETTINGS = ("variant", "batch_size")


def rows_of(random, num=6, runs=8, step=-3.0):
    """Flatness rises with the gap in each setting; from setting to setting by the sign of step."""
    rows = []
    for setting in range(num):
        for seed in range(runs):
            inside = random.normal()
            row = {"variant": f"rate {setting % 3}", "batch_size": setting // 3, "seed": seed}
            row |= {"gap": inside + step * setting, "error_gap": inside - step * setting}
            row |= {"head.kappa": 20 * 2.0**setting * math.exp(0.1 * inside)}
            rows.append(row | {"train_loss": random.random(), "softmax.gini": random.random()})
    return rows


def test_ranks_that_are_judged_count_settings():
    rows = rows_of(numpy.random.default_rng(0))
    table, ranks = correlations(rows, ["head.kappa"], SETTINGS)
    x, y = ([row[name] for row in rows] for name in ("head.kappa", "gap"))
    settings = [(row["variant"], row["batch_size"]) for row in rows]
    assert ranks["head.kappa"] == clustered(x, y, settings)
    assert table.columns[4] == "Spearman, interval over settings"
    name, n, linear, over_runs, over_settings, _, factors = table.rows[0]
    assert (name, n, factors) == ("head.kappa", 48, "softmax.gini")
    assert linear.value == pytest.approx(stats.pearsonr(x, y).statistic)
    assert over_runs.value == over_settings.value == pytest.approx(stats.spearmanr(x, y)[0])
    assert over_settings.low < over_runs.low


def test_without_repeated_settings_nothing_changes():
    rows = rows_of(numpy.random.default_rng(0), runs=1, num=20)
    rows = [row | {"variant": str(place)} for place, row in enumerate(rows)]
    table, ranks = correlations(rows, ["head.kappa"], SETTINGS)
    assert settings_of(rows, SETTINGS) is None
    assert "Spearman, interval over settings" not in table.columns
    assert ranks["head.kappa"].clusters is None
    assert levels_tables(rows, ["head.kappa"], SETTINGS) == []
    assert len(scatter(rows, "head.kappa", SETTINGS).series) == 1


def test_two_networks_of_a_setting_say_nothing_within_it():
    rows = rows_of(numpy.random.default_rng(0), runs=2)
    losses, accuracies = levels_tables(rows, ["head.kappa"], SETTINGS)
    for table in (losses, accuracies):
        assert {tuple(cells[3:5]) for cells in table.rows} == {(None, "0 of 0")}


def test_groups_that_share_a_batch_size_are_shown():
    rows = rows_of(numpy.random.default_rng(0), num=12)  # three rates, four batch sizes
    table, _ = levels_tables(rows, ["head.kappa"], SETTINGS)
    place = table.columns.index("over groups")
    x, y = ([row[name] for row in rows] for name in ("head.kappa", "gap"))
    found = clustered(x, y, [row["batch_size"] for row in rows])
    assert table.rows[0][place] == f"{estimate(found)} (4 by batch size)"
    few = [row for row in rows_of(numpy.random.default_rng(0)) if row["seed"] < 3]
    smaller, _ = levels_tables(few, ["head.kappa"], SETTINGS)
    assert {cells[place] for cells in smaller.rows} == {None}  # of two batch sizes, three seeds


def test_confounders_held_fixed_with_the_widest_interval():
    rows = rows_of(numpy.random.default_rng(0), num=12)
    arguments = ("head.kappa", "gap", ["train_loss"], SETTINGS)
    found, over = cautious_partial(rows, *arguments), partial_over_settings(rows, *arguments)
    x, y, loss, batch = (
        [row[name] for row in rows] for name in ("head.kappa", "gap", "train_loss", "batch_size")
    )
    groups = partial_correlation(x, y, {"train_loss": loss}, kind="spearman", clusters=batch)
    assert found.low <= groups.low < over.low < over.high < groups.high <= found.high
    few = cautious_partial(rows_of(numpy.random.default_rng(0)), *arguments)
    assert math.isnan(few.low)
    assert "may decide" in few.reason
    plain = rows_of(numpy.random.default_rng(0), runs=1, num=12)  # no setting is repeated
    by_runs, of_runs = cautious_partial(plain, *arguments), partial_over_settings(plain, *arguments)
    assert by_runs.value == of_runs.value
    assert by_runs.low <= of_runs.low < of_runs.high <= by_runs.high


def test_an_old_record_that_does_not_say_its_settings():
    rows = [{"gap": 1.0}, {"gap": 2.0}]
    assert settings_of(rows, SETTINGS) is None


def test_a_study_that_varies_only_some_of_the_settings():
    rows = [{"variant": name, "gap": 1.0} for name in "aab"]
    assert settings_of(rows, SETTINGS) == ["a", "a", "b"]


def test_table_has_both_gaps_and_both_correlations():
    rows = rows_of(numpy.random.default_rng(1))
    both = levels_tables(rows, ["head.kappa"], SETTINGS)
    assert [table.title.rpartition(": ")[2] for table in both] == [
        "gap of the losses",
        "gap of the accuracies",
    ]
    assert both[0].caption.startswith("6 settings. ")
    for table, signs in zip(both, ("differ", "agree"), strict=True):
        assert [cells[1:3] for cells in table.rows] == [["Spearman", 48], ["Pearson", 48]]
        assert [cells[-1] for cells in table.rows] == [signs] * 2
        assert all(cells[4] == "6 of 6" for cells in table.rows)
    alone = levels_tables([row | {"error_gap": None} for row in rows], ["head.kappa"], SETTINGS)
    assert len(alone) == 1


def test_reasons_say_that_the_signs_differ_and_what_was_held_fixed():
    rows = rows_of(numpy.random.default_rng(2))
    text = why(rows, "head.kappa", settings=SETTINGS)
    assert "is a factor of head.kappa itself" in text
    assert "Simpson's paradox" in text
    assert "paradox" not in why(rows, "head.kappa")


def test_figure_has_a_line_for_each_setting():
    rows = rows_of(numpy.random.default_rng(3))
    figure = scatter(rows, "head.kappa", SETTINGS)
    assert [series.name for series in figure.series] == [
        f"rate {setting % 3}, {setting // 3}" for setting in range(6)
    ]
    assert figure.fitted
    for series in figure.series:
        (left, right), (low, high) = fitted_line(series.x, series.y, log_x=True)
        fit = stats.linregress(numpy.log(series.x), series.y)
        assert low == pytest.approx(fit.intercept + fit.slope * math.log(left))
        assert high == pytest.approx(fit.intercept + fit.slope * math.log(right))
        assert fit.slope > 0


def test_few_points_or_points_above_each_other_have_no_line():
    assert fitted_line([1, 2, 3], [1, 2, 3]) is None
    assert fitted_line([2, 2, 2, 2], [1, 2, 3, 4]) is None


@pytest.mark.parametrize("name", ["head.trace", "curvature.ggn_trace", "curvature.trace"])
def test_gini_is_a_factor(name):
    """With features of norm 1 these are the Gini term alone, whatever the weights."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4, bias=False).double()
    x = torch.nn.functional.normalize(torch.randn(30, 6).double(), dim=1)
    found = sl.measure(model, (x, torch.arange(30) % 4), measures=[name, "softmax.gini"])
    assert found[name].value == pytest.approx(found["softmax.gini"].value, rel=1e-9)
    assert factors_held_fixed(name, ["softmax.gini", "train_loss"]) == ["softmax.gini"]


def test_factors_of_layers_and_of_what_is_no_curvature():
    given = ["train_loss", "softmax.gini", "norms.weight"]
    assert factors_held_fixed("scaled.trace[fc1]/layers", given) == given[1:]
    assert factors_held_fixed("norms.fisher_rao", given) == []


def minima_of(request, preset, columns):
    """The outcome of 002-fig-5, and the rank correlations within settings by a loop over rows."""
    experiment, groups = find("002-fig-5"), {}
    records = load(request.config.rootpath / "experiments/results", "002-fig-5")
    (rows,) = [record.rows for record in records if record.preset == preset]
    for row in rows:
        if row["outcome"] in ("train_loss", "running_loss"):
            pair = row["head.kappa"], row["gap"]
            groups.setdefault(tuple(row[name] for name in columns), []).append(pair)
    large = [group for group in groups.values() if len(group) > 2]  # smaller ones say nothing
    inside = [stats.spearmanr(*zip(*group, strict=True))[0] for group in large]
    return experiment.analyse(experiment.trained.split(rows).judged), len(groups), inside


def test_110_minima_of_10000_images_disagree_within_and_between_settings(request):
    """Pooled −0.19, positive in 7 of 8 settings, mean +0.29."""
    outcome, settings, inside = minima_of(request, "h200", SETTINGS)
    assert (settings, len(inside), sum(rank > 0 for rank in inside)) == (8, 8, 7)
    assert "Simpson's paradox" in outcome.why
    assert f"mean of single settings {numpy.mean(inside):+.2f}" in outcome.why
    assert "7 of 8 settings" in outcome.why
    assert outcome.findings[0].result == "undecided"
    assert outcome.findings[0].seen.low < -0.5 < 0.3 < outcome.findings[0].seen.high


def test_minima_of_all_images_agree_within_and_between_settings(request):
    outcome, settings, inside = minima_of(request, "h200-full", (*SETTINGS, "weight_decay"))
    assert outcome.findings[0].clusters == settings
    assert f"mean of single settings {numpy.mean(inside):+.2f}" in outcome.why
    positive = sum(rank > 0 for rank in inside)
    assert f"positive in {positive} of {len(inside)} settings" in outcome.why
    assert "Simpson" not in outcome.why
    assert outcome.findings[0].result == "held"
