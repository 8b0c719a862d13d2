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
from spiritlevel_lab.claims.population import correlations, outcomes_table, scatter, why
from spiritlevel_lab.claims.rows import OUTCOMES, with_outcomes
from spiritlevel_lab.claims.settings import (
    difference_of,
    judged_of,
    levels_tables,
    partial_of,
    settings_of,
)
from spiritlevel_lab.papers import find
from spiritlevel_lab.statistics import clustered, partial_correlation, spearman

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


def widths(found):
    return found.high - found.low


def test_ranks_are_judged_by_the_widest_interval():
    """Twelve settings, four batch sizes: settings, batch sizes, seeds and runs one by one."""
    rows = rows_of(numpy.random.default_rng(0), num=12)
    table, ranks = correlations(rows, ["head.kappa"], SETTINGS)
    x, y = ([row[name] for row in rows] for name in ("head.kappa", "gap"))
    settings = [(row["variant"], row["batch_size"]) for row in rows]
    by_hand = [
        spearman(x, y),
        clustered(x, y, settings),
        clustered(x, y, [row["batch_size"] for row in rows]),
        clustered(x, y, [row["seed"] for row in rows]),
    ]
    judged = ranks["head.kappa"]
    assert judged.low <= min(each.low for each in by_hand)
    assert judged.high >= max(each.high for each in by_hand)
    name, n, linear, over_runs, shown, _, _, factors = table.rows[0]
    assert table.columns[4] == "Spearman, widest interval"
    assert (name, n, factors) == ("head.kappa", 96, "softmax.gini")
    assert linear.value == pytest.approx(stats.pearsonr(x, y).statistic)
    assert over_runs.value == shown.value == pytest.approx(stats.spearmanr(x, y)[0])
    assert widths(shown) > widths(over_runs)


def test_where_no_setting_is_repeated_what_they_share_counts():
    """24 networks, each a setting of its own; the batch size alone decides."""
    random = numpy.random.default_rng(0)
    rows = [
        {"lr": 10.0**-i, "batch_size": 8 * 2**j, "gap": j + 0.1 * random.normal()}
        for i in range(6)
        for j in range(4)
    ]
    rows = [row | {"m": row["batch_size"] + random.normal()} for row in rows]
    plain = judged_of(rows, "m", "gap")
    shared = judged_of(rows, "m", "gap", ["lr", "batch_size"])
    assert (plain.over, plain.count) == ("runs", 24)
    assert shared.over == "groups with the same batch_size"
    assert shared.low < plain.low


def test_without_repeated_settings_there_are_no_levels():
    rows = rows_of(numpy.random.default_rng(0), runs=1, num=20)
    rows = [row | {"variant": str(place)} for place, row in enumerate(rows)]
    table, ranks = correlations(rows, ["head.kappa"], SETTINGS)
    assert settings_of(rows, SETTINGS) is None
    assert "Spearman, widest interval" not in table.columns
    assert ranks["head.kappa"].over == "groups with the same batch_size"
    assert levels_tables(rows, ["head.kappa"], SETTINGS) == []
    assert len(scatter(rows, "head.kappa", SETTINGS).series) == 1


def test_two_networks_of_a_setting_say_nothing_within_it():
    rows = rows_of(numpy.random.default_rng(0), runs=2)
    for table in levels_tables(rows, ["head.kappa"], SETTINGS):
        assert {tuple(cells[3:5]) for cells in table.rows} == {(None, "0 of 0")}


def test_a_difference_has_an_interval_of_its_own():
    """Of two measures that hardly differ it is narrow, though each of them is uncertain."""
    rows = rows_of(numpy.random.default_rng(0), num=12)
    random = numpy.random.default_rng(1)
    for row in rows:
        row["other"] = row["head.kappa"] * (1 + 1e-3 * random.random())
    x, z, y = ([row[name] for row in rows] for name in ("head.kappa", "other", "gap"))
    found = difference_of(rows, "head.kappa", "other", "gap", SETTINGS)
    assert found.value == pytest.approx(stats.spearmanr(x, y)[0] - stats.spearmanr(z, y)[0])
    assert widths(found) < 0.5 * widths(judged_of(rows, "head.kappa", "gap", SETTINGS))


def test_confounders_held_fixed_with_the_widest_interval():
    rows = rows_of(numpy.random.default_rng(0), num=12)
    arguments = ("head.kappa", "gap", ["train_loss"], SETTINGS)
    found = partial_of(rows, *arguments)
    x, y, loss, batch = (
        [row[name] for row in rows] for name in ("head.kappa", "gap", "train_loss", "batch_size")
    )
    settings = [(row["variant"], row["batch_size"]) for row in rows]
    by_hand = [
        partial_correlation(x, y, {"train_loss": loss}, kind="spearman", clusters=groups)
        for groups in (settings, batch, [row["seed"] for row in rows])
    ]
    assert found.value == pytest.approx(by_hand[0].value)
    assert found.low <= min(each.low for each in by_hand)
    assert found.high >= max(each.high for each in by_hand)
    few = partial_of(rows_of(numpy.random.default_rng(0)), *arguments)
    assert math.isnan(few.low)
    assert "may decide" in few.reason


def test_an_old_record_that_does_not_say_its_settings():
    rows = [{"gap": 1.0}, {"gap": 2.0}]
    assert settings_of(rows, SETTINGS) is None


def test_a_study_that_varies_only_some_of_the_settings():
    rows = [{"variant": name, "gap": 1.0} for name in "aab"]
    assert settings_of(rows, SETTINGS) == ["a", "a", "b"]


def test_there_is_a_table_for_each_outcome():
    rows = rows_of(numpy.random.default_rng(1))
    rows = with_outcomes([row | {"test_accuracy": 0.5 - row["gap"] / 100} for row in rows])
    tables = levels_tables(rows, ["head.kappa"], SETTINGS)
    assert [table.title.rpartition(": ")[2] for table in tables] == list(OUTCOMES.values())
    assert tables[0].caption.startswith("6 settings. ")
    kinds = ["Spearman", "Pearson", "Pearson, logarithm"]
    for table, signs in zip(tables, ("differ", "agree", "differ"), strict=True):
        assert [cells[1:3] for cells in table.rows] == [[kind, 48] for kind in kinds]
        assert [cells[-1] for cells in table.rows] == [signs] * 3
        assert all(cells[4] == "6 of 6" for cells in table.rows)
    alone = levels_tables([{**row, "error_gap": None} for row in rows], ["head.kappa"], SETTINGS)
    assert len(alone) == 2


def test_outcomes_follow_from_the_accuracies():
    row = {"train_accuracy": 1.0, "test_accuracy": 0.75}
    assert with_outcomes([row])[0] == row | {"error_gap": 0.25, "test_error": 0.25}
    less = {"train_accuracy": 0.875, "test_accuracy": 0.75}
    assert with_outcomes([less])[0] == less | {"error_gap": 0.125, "test_error": 0.25}
    recorded = {"error_gap": 0.5, "test_accuracy": 0.75}
    assert with_outcomes([recorded])[0] == recorded | {"test_error": 0.25}


def test_three_outcomes_stand_side_by_side():
    """Each cell against the correlation of that outcome alone; one that is not recorded is left."""
    rows = rows_of(numpy.random.default_rng(1))
    rows = with_outcomes([row | {"test_accuracy": 0.5 - row["gap"] ** 3 / 1e6} for row in rows])
    table = outcomes_table(rows, ["head.kappa", "nowhere"], SETTINGS)
    [(name, *cells)] = table.rows  # what no run has is left out
    assert (name, len(cells), table.columns[1:4]) == (
        "head.kappa",
        6,
        tuple(f"within settings: {words}" for words in OUTCOMES.values()),
    )
    over_all = [judged_of(rows, "head.kappa", outcome, SETTINGS) for outcome in OUTCOMES]
    assert [(c.value, c.low, c.high) for c in cells[3:]] == [
        (each.value, each.low, each.high) for each in over_all
    ]
    assert [cell.value > 0 for cell in cells] == [True, True, True, False, True, False]
    unknown = outcomes_table([{**row, "error_gap": None} for row in rows], ["head.kappa"], SETTINGS)
    assert [cell is None for cell in unknown.rows[0][1:]] == [False, True, False] * 2
    alone = [row for row in rows if row["seed"] == 0]
    assert outcomes_table(alone, ["head.kappa"], SETTINGS).columns[1:] == (*OUTCOMES.values(),)
    by_rate = outcomes_table(rows, ["head.kappa"], ["batch_size"], by="variant")
    assert [row[:2] for row in by_rate.rows] == [[f"rate {i}", "head.kappa"] for i in range(3)]


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
    """Pooled −0.19, positive in 7 of 8 settings."""
    outcome, settings, inside = minima_of(request, "h200", SETTINGS)
    assert (settings, len(inside), sum(rank > 0 for rank in inside)) == (8, 8, 7)
    assert "Simpson's paradox" in outcome.why
    assert "7 of 8 settings" in outcome.why
    assert outcome.findings[0].result == "undecided"
    assert outcome.findings[0].seen.low < -0.5 < 0.3 < outcome.findings[0].seen.high


def test_minima_of_all_images_are_undecided_by_the_widest_interval(request):
    """Over the 17 settings the interval lies above 0; over what they share it does not."""
    outcome, settings, inside = minima_of(request, "h200-full", (*SETTINGS, "weight_decay"))
    positive = sum(rank > 0 for rank in inside)
    assert f"positive in {positive} of {len(inside)} settings" in outcome.why
    [found, *_] = outcome.findings
    assert (found.result, settings) == ("undecided", 17)
    assert found.clusters < settings
    assert found.seen.low < 0 < found.seen.high
