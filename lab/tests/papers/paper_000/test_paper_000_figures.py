"""Figures of paper 000 that look at the runs of its tables: what is judged, and what is drawn."""

import math

import numpy
import pytest
import torch
from scipy import stats

from publishing.series import joint_density, svg
from spiritlevel.records.content import Figure, Panels, Series
from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.judgement import judged
from spiritlevel_lab.papers.recipes.figures import density_line

HELD, NOT, OPEN = "held", "not held", "undecided"


def results(outcome):
    return [finding.result for finding in outcome.findings]


def optimizer_rows(flatness, gaps):
    """Both optimizers at the rates 0.001 and 0.01, under the names that the study has for them."""
    ways = {"sgd-slow": 0, "sgd": 1, "adamw": 2, "adamw-fast": 3}
    random = numpy.random.default_rng(5)
    rows = []
    for way, place in ways.items():
        for seed in range(6):
            row = {"outcome": "epochs", "variant": way, "batch_size": 64 + 64 * (seed % 2)}
            row |= {"seed": seed // 2, "train_loss": 0.1, "softmax.gini": 0.1 * seed}
            row |= {"head.kappa": flatness[place] * (1 + 0.2 * random.random())}
            rows.append(row | {"gap": gaps[place] * (1 + 0.2 * random.random())})
    return rows


# -- Fig. 3 (b) ------------------------------------------------------------------------------


def test_a_bound_must_lie_above_every_positive_gap():
    rows = optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
    for row in rows:
        row["bound.generalization"] = 20.0 * row["gap"]
    outcome = find("000-fig-3").analyse(rows)
    assert results(outcome)[0] == HELD
    assert "above 24 of 24 positive gaps. It is 20 to 20 times the gap" in outcome.conclusion
    assert "at least 20-fold would lie above them whatever flatness is" in outcome.why
    rows[0]["bound.generalization"] = 0.5 * rows[0]["gap"]
    rows[1] |= {"gap": -1.0}  # no gap to cover
    broken = find("000-fig-3").analyse(rows)
    assert (results(broken)[0], broken.agrees) == (NOT, "no")
    assert "above 22 of 23 positive gaps" in broken.findings[0].seen


def test_a_bound_that_covers_without_following_is_partly_reproduced_at_most():
    rows = optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
    for row in rows:
        row["bound.generalization"] = 100.0 / row["gap"]
    outcome = find("000-fig-3").analyse(rows)
    assert results(outcome)[0] == HELD
    assert outcome.findings[1].number.value == pytest.approx(-1.0)
    assert outcome.agrees == "partly"


# -- Fig. 4 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flatness", "gaps", "parts"),
    [
        # SGD at 0.001 and 0.01, then AdamW
        ((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0), [HELD, HELD, HELD]),
        ((5.0, 2.0, 3.0, 50.0), (1.0, 1.0, 1.0, 2.0), [NOT, OPEN, HELD]),
        ((2.0, 5.0, 10.0, 50.0), (2.0, 1.0, 1.0, 2.0), [HELD, NOT, NOT]),
        ((5.0, 5.0, 5.0, 50.0), (1.0, 1.0, 2.0, 2.0), [OPEN, HELD, OPEN]),
    ],
)
def test_two_optimizers_at_the_same_rates(flatness, gaps, parts):
    rows = optimizer_rows(flatness, gaps)
    outcome = find("000-fig-4").analyse(rows)
    assert results(outcome) == parts
    assert outcome.agrees == ("yes" if set(parts) == {HELD} else "partly")
    own = {
        way: {(r["batch_size"], r["seed"]): r for r in rows if r["variant"] == way}
        for way in ("sgd", "adamw-fast")
    }
    ratios = [own["sgd"][k]["head.kappa"] / own["adamw-fast"][k]["head.kappa"] for k in own["sgd"]]
    changes = [own["sgd"][k]["gap"] - own["adamw-fast"][k]["gap"] for k in own["sgd"]]
    assert f"rate 0.01: {stats.gmean(ratios):.3g} [" in outcome.findings[0].seen
    low, high = stats.ttest_1samp(changes, 0.0).confidence_interval()
    assert f"rate 0.01: {numpy.mean(changes):.3g} [{low:.3g}, {high:.3g}]" in (
        outcome.findings[1].seen
    )


def test_networks_that_are_compared_have_the_same_weight_decay():
    rows = optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
    rows = [row | {"weight_decay": 0.0} for row in rows]
    decayed = [row | {"weight_decay": 5e-4, "head.kappa": 100 * row["head.kappa"]} for row in rows]
    plain, both = (
        find("000-fig-4").analyse(each).findings[0].seen for each in (rows, [*rows, *decayed])
    )
    ratios = [text.split(": ")[1].split(" [")[0] for text in (plain, both)]
    assert ratios[0] == ratios[1]  # each network beside one like it, so the factor of 100 is gone


def test_optimizers_without_a_rate_in_common_are_not_compared():
    rows = [
        row
        for row in optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
        if row["variant"] in ("sgd-slow", "adamw-fast")
    ]
    outcome = find("000-fig-4").analyse(rows)
    assert (results(outcome), outcome.agrees) == (["undecided"] * 3, "undecided")


def test_all_three_parts_are_needed():
    """With one rate each, nothing can be seen of what a larger rate does."""
    rows = [
        row
        for row in optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
        if row["variant"] in ("sgd", "adamw-fast")
    ]
    outcome = find("000-fig-4").analyse(rows)
    assert (results(outcome), outcome.agrees) == (["held", "held", "undecided"], "partly")


def test_rates_of_the_preset_paper_are_in_the_names_of_its_ways():
    rows = optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
    names = {"sgd-slow": "sgd-0.005", "sgd": "sgd-0.1", "adamw": "adamw-0.005"}
    for row in rows:
        row["variant"] = names.get(row["variant"], "adamw-0.0001")
    seen = find("000-fig-4").analyse(rows).findings[0].seen
    assert seen.startswith("rate 0.005: ")
    assert seen.count("rate ") == 1


def test_medians_and_quartiles_of_every_optimizer_and_rate():
    rows = optimizer_rows((5.0, 2.0, 10.0, 50.0), (1.0, 1.0, 2.0, 2.0))
    outcome = find("000-fig-4").analyse(rows)
    assert [tuple(cells[:3]) for cells in outcome.table.rows] == [
        *(("SGD", "0.001", 6), ("SGD", "0.01", 6)),
        *(("AdamW", "0.001", 6), ("AdamW", "0.01", 6)),
    ]
    own = [row["head.kappa"] for row in rows if row["variant"] == "adamw"]
    low, middle, high = numpy.quantile(own, [0.25, 0.5, 0.75])
    assert outcome.table.rows[2][3] == f"{middle:.4g} [{low:.4g}, {high:.4g}]"
    assert outcome.table.rows[0][5] is None  # the gap of the accuracies was not recorded
    _, adamw = outcome.figure.figures[0].series
    assert (adamw.x, adamw.y[0]) == ([0.001, 0.01], pytest.approx(middle))
    assert (adamw.low[0], adamw.high[0]) == (pytest.approx(low), pytest.approx(high))


# -- Fig. 8 ----------------------------------------------------------------------------------


def architecture_rows(sign):
    """Flatness over three decades, AdamW's three times SGD's; the gap follows its logarithm."""
    random = numpy.random.default_rng(2)
    rows = []
    for variant in ("vgg16", "densenet121"):
        for i, rate in enumerate((0.001, 0.005, 0.01, 0.05)):
            for batch in (64, 128):
                for place, optimizer in enumerate(("sgd", "adamw")):
                    kappa = 10.0 ** (i + 0.1 * random.normal()) * 3**place
                    gap = 3 + sign * math.log10(kappa) + 0.3 * random.normal()
                    row = {"outcome": "epochs", "variant": variant, "optimizer": optimizer}
                    row |= {"lr": rate, "batch_size": batch, "seed": 0, "train_loss": 0.01}
                    rows.append(row | {"head.kappa": kappa, "gap": gap})
    return rows


def test_logarithms_of_flatness_and_the_gap_of_two_architectures():
    rows = architecture_rows(1.0)
    outcome = judged(find("000-fig-8"), rows)
    # how many orders of magnitude flatness spans is shown and not judged
    assert (results(outcome), outcome.agrees) == ([HELD, "not judged", HELD], "partly")
    own = [row for row in rows if row["variant"] == "vgg16"]
    logs, gaps = [math.log(r["head.kappa"]) for r in own], [r["gap"] for r in own]
    assert outcome.table.rows[0][4].value == pytest.approx(stats.pearsonr(logs, gaps).statistic)
    pairs = [
        b["head.kappa"] / a["head.kappa"]
        for a in own
        for b in own
        if (a["optimizer"], b["optimizer"]) == ("sgd", "adamw")
        and (a["lr"], a["batch_size"]) == (b["lr"], b["batch_size"])
    ]
    assert outcome.table.rows[0][6].value == pytest.approx(stats.gmean(pairs))
    assert len(outcome.figure.figures) == 6
    assert results(find("000-fig-8").analyse(architecture_rows(-1.0)))[0] == NOT


def test_networks_that_are_not_trained_are_not_judged():
    rows = [row | {"train_loss": 2.3} for row in architecture_rows(1.0)]
    outcome = judged(find("000-fig-8"), rows)
    assert (set(results(outcome)), outcome.agrees) == ({"not judged"}, "untrained")


# -- Fig. 9 ----------------------------------------------------------------------------------


def augmented_rows(strength, mixup):
    random = numpy.random.default_rng(3)
    rows = []
    for variant in ("none", "basic", "auto", "mixup"):
        for seed in range(20):
            kappa = (mixup if variant == "mixup" else 4.0) * math.exp(0.1 * random.normal())
            gap = 0.2 + strength * 0.05 * math.log(kappa) + 0.001 * random.normal()
            row = {"outcome": "train_accuracy", "variant": variant, "seed": seed}
            row |= {"train_accuracy": 0.995, "test_accuracy": 0.8, "error_gap": gap}
            rows.append(row | {"head.kappa": kappa})
    return rows


def test_flatness_and_gap_within_each_augmentation():
    rows = augmented_rows(1.0, 5.0)
    outcome = judged(find("000-fig-9"), rows)
    assert (results(outcome), outcome.agrees) == ([HELD, HELD], "yes")
    own = [row for row in rows if row["variant"] == "auto"]
    rank = stats.spearmanr([r["head.kappa"] for r in own], [r["error_gap"] for r in own]).statistic
    assert outcome.reproduced_values["Spearman, AutoAugment"].value == pytest.approx(rank)
    assert [cells[0] for cells in outcome.table.rows] == ["Basic", "AutoAugment", "Mixup"]
    assert results(find("000-fig-9").analyse(augmented_rows(-1.0, 4.0))) == [NOT, OPEN]


# -- densities, and panels -------------------------------------------------------------------


def test_density_of_logarithms_is_that_of_scipy():
    values = numpy.random.default_rng(0).normal(size=40)
    places, heights = density_line(list(values))
    wanted = stats.gaussian_kde(values)(numpy.log10(places))
    assert heights == pytest.approx(wanted, rel=1e-9)
    assert density_line([1.0, 1.0, 1.0, 1.0]) == ([], [])


def test_joint_density_is_that_of_scipy_for_uncorrelated_points():
    # scipy's kernel has the covariance of the points, ours has none: made uncorrelated first.
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    points = torch.linalg.qr(points - points.mean(dim=0))[0] * torch.tensor([2.0, 0.1])
    x, y = points.T
    grid = torch.linspace(-1, 1, 5).double()
    found = joint_density(x, y, grid, 0.1 * grid)
    across, up = numpy.meshgrid(grid, 0.1 * grid)
    wanted = stats.gaussian_kde(points.T.numpy())(numpy.stack([across.ravel(), up.ravel()]))
    assert found.numpy() == pytest.approx(wanted.reshape(5, 5), rel=1e-8)


def test_panels_are_drawn_into_one_file_and_the_same_bytes():
    marks = Series("a", [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 5.0])
    figures = [
        Figure("x", "y", [marks], points=True, density=True, log_x=True, title="first"),
        Figure("x", "y", [Series("none", [], [])], title="empty"),
    ]
    drawn = svg(Panels(figures, columns=2))
    assert drawn == svg(Panels(figures, columns=2))
    contoured = drawn.count(b"<path")
    plain = svg(Panels([Figure("x", "y", [marks], points=True, log_x=True), figures[1]], columns=2))
    assert contoured > plain.count(b"<path")
