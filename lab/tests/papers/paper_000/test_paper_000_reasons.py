"""Paper 000: what a page says beside its verdict, on rows that were made to have a reason."""

import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.papers import find
from spiritlevel_lab.papers.paper_000.tasks_dynamics import SHARES

pytestmark = pytest.mark.sampled(2)  # the others at night

KAPPA = "head.kappa"


def ranks(rows, one, other):
    return stats.spearmanr([row[one] for row in rows], [row[other] for row in rows]).statistic


def left_of(rows, one, other, held):
    """A partial rank correlation by the inverse of the matrix of all rank correlations."""
    names = (one, other, *held)
    table = numpy.array([[ranks(rows, a, b) for b in names] for a in names])
    inverse = numpy.linalg.inv(table)
    return -inverse[0, 1] / math.sqrt(inverse[0, 0] * inverse[1, 1])


# -- Table 3 -----------------------------------------------------------------------------------


def ways_rows(lifted, seeds=14):
    """Flatness follows the gap from way to way and not within one; `lifted` ends far above."""
    ways = ("sgd-slow", "sgd", "sgd-fast", "adamw-slow", "adamw")
    random = numpy.random.default_rng(7)
    rows = []
    for place, way in enumerate(ways):
        for seed in range(seeds):
            gap = 1.0 + 0.1 * place + 0.02 * random.normal() + 3.0 * (way == lifted)
            row = {"outcome": "epochs", "variant": way, "batch_size": 64, "seed": seed, "gap": gap}
            row |= {"train_loss": random.normal(), "softmax.gini": random.normal()}
            row |= {name: random.random() for name in find("000-table-3").measures}
            rows.append(row | {KAPPA: 1.0 + place + 0.3 * random.random()})
    return rows


@pytest.mark.parametrize(
    ("lifted", "words"), [("sgd-slow", "SGD at rate 0.001"), ("adamw", "AdamW at rate 0.001")]
)
def test_way_of_training_that_stands_apart(lifted, words):
    rows = ways_rows(lifted)
    outcome = find("000-table-3").analyse(rows)
    rest = [row for row in rows if row["variant"] != lifted]
    kappa, gap = ([row[name] for row in rest] for name in (KAPPA, "gap"))
    own = {row["variant"]: [r for r in rows if r["variant"] == row["variant"]] for row in rows}
    medians = {way: numpy.median([row["gap"] for row in group]) for way, group in own.items()}
    others = [median for way, median in medians.items() if way != lifted]
    within = numpy.mean([ranks(group, KAPPA, "gap") for group in own.values()])
    assert f"{words} has the median gap furthest from the others': {medians[lifted]:.4g}, " in (
        outcome.why
    )
    assert f"where theirs are {min(others):.4g} to {max(others):.4g}." in outcome.why
    assert f"Pearson correlation of {stats.pearsonr(kappa, gap).statistic:+.2f} [" in outcome.why
    assert f"Spearman correlation of {ranks(rest, KAPPA, 'gap'):+.2f} [" in outcome.why
    assert f"over {len(rest)} networks. Within one optimizer and rate, all batch" in outcome.why
    assert f"rank correlation is {within:.3g} [" in outcome.why
    assert "after the runs and is not judged" in outcome.why
    fixed = left_of(rows, KAPPA, "gap", ("train_loss", "softmax.gini"))
    assert f"have a rank correlation of {fixed:+.2f} [" in outcome.why


def test_figure_has_a_series_for_every_way_of_training():
    rows = ways_rows("adamw", seeds=4)
    rows[0]["variant"] = "a way of an older study"
    rows[1][KAPPA] = math.inf
    series = find("000-table-3").analyse(rows).figure.series
    assert [(each.name, len(each.x)) for each in series] == [
        *(("SGD at rate 0.001", 2), ("SGD at rate 0.01", 4), ("SGD at rate 0.1", 4)),
        *(("AdamW at rate 0.0001", 4), ("AdamW at rate 0.001", 4)),
        ("a way of an older study", 1),
    ]
    assert series[1].x == [row[KAPPA] for row in rows if row["variant"] == "sgd"]
    assert series[1].y == [row["gap"] for row in rows if row["variant"] == "sgd"]


def test_of_two_ways_none_stands_apart():
    rows = [row for row in ways_rows("adamw") if row["variant"] in ("sgd", "adamw")]
    assert find("000-table-3").analyse(rows).why.startswith("With training loss and uncertainty")


# -- Table 4 -----------------------------------------------------------------------------------


def followed_rows(flatness, accuracy, seeds=3):
    rows = []
    for seed in range(seeds):
        row = {"outcome": "epochs", "variant": "slow", "seed": seed, KAPPA: 1.0}
        row |= {"test_accuracy": 0.9, "error_gap": 0.1, "task.flatness/first": 1.0}
        row |= {"task.flatness_against_accuracy": -0.3 + 0.01 * seed}
        for share, kappa, right in zip(SHARES, flatness, accuracy, strict=True):
            row |= {f"task.flatness/{share}": kappa + seed, f"task.test_accuracy/{share}": right}
        rows.append(row)
    return rows


def test_peak_of_flatness_on_the_way():
    flatness, accuracy = (1, 2, 3, 90, 30, 20, 10), (0.1, 0.2, 0.3, 0.8, 0.9, 0.9, 0.95)
    rows = followed_rows(flatness, accuracy)
    rows[0]["task.flatness/75"] = 120.0  # here the peak comes later
    why = find("000-table-4").analyse(rows).why
    low, high = stats.t.interval(0.95, 2, numpy.mean([75, 25, 25]), stats.sem([75, 25, 25]))
    place = numpy.mean([75, 25, 25])
    assert f"largest after {place:.3g} [{low:.3g}, {high:.3g}] % of the epochs" in why
    assert f"before training, {numpy.mean([120, 91, 92]):.3g} [" in why
    assert f"before training, {numpy.mean([0.9, 0.8, 0.8]):.3g} [" in why
    assert "both rise in 3 of 3 runs; from then to the end flatness falls while the accuracy" in why
    assert why.endswith("rises in 3.")


def test_flatness_that_falls_from_the_start_has_no_rise():
    rows = followed_rows((90, 50, 30, 20, 15, 12, 10), (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.9))
    why = find("000-table-4").analyse(rows).why
    assert "largest after 0 [0, 0] % of the epochs" in why
    assert "both rise in 0 of 3 runs; " in why


def test_record_without_the_looks_has_no_reason():
    rows = followed_rows((1, 2, 3, 90, 30, 20, 10), (0.1,) * 7)
    for row in rows:
        row["task.test_accuracy/50"] = None
    assert find("000-table-4").analyse(rows).why == ""


# -- Table 5 and Fig. 6 ------------------------------------------------------------------------


def confounded_rows(count, random, **same):
    """Flatness and gap go together because both go with the training loss."""
    rows = []
    for _ in range(count):
        loss = random.normal()
        row = {"outcome": "epochs", "train_loss": loss, "softmax.gini": random.normal()} | same
        row |= {"gap": loss + 0.5 * random.normal(), "train_accuracy": 1.0, "test_accuracy": 0.8}
        rows.append(row | {KAPPA: math.exp(loss + 0.5 * random.normal())})
    return rows


def test_what_is_left_of_each_network():
    random = numpy.random.default_rng(8)
    deep, dense, few = (
        confounded_rows(count, random, variant=name)
        for count, name in ((20, "vgg16"), (30, "densenet121"), (9, "densenet121"))
    )
    why = find("000-table-5").analyse([*deep, *dense]).why
    first, second = why.split(" DenseNet: ")
    for text, rows in ((first, deep), (second, dense)):
        left = left_of(rows, KAPPA, "gap", ("train_loss", "softmax.gini"))
        assert f"Over {len(rows)} networks" in text
        assert "(1 − ‖p‖²) is a factor of head.kappa itself" in text
        assert (
            f"held fixed, relative flatness of the head and the gap have a rank correlation of "
            f"{left:+.2f} [" in text
        )
    assert first.startswith("VGG-16: Over ")
    assert "DenseNet" not in find("000-table-5").analyse([*deep, *few]).why


def test_wrong_labels_are_in_the_training_loss():
    random = numpy.random.default_rng(9)
    rows = []
    for noise in (0.0, 0.2, 0.4):
        rows += confounded_rows(12, random, variant="a", **{"interventions.label_noise": noise})
    for row in rows:
        row["train_loss"] += 10 * row["interventions.label_noise"]
        row[KAPPA] += 100 * (row["interventions.label_noise"] == 0.2)
    why = find("000-fig-6").analyse(rows).why
    left = left_of(rows, KAPPA, "gap", ("train_loss", "softmax.gini"))
    assert (
        f"Over 36 networks the training loss has a rank correlation of "
        f"{ranks(rows, 'train_loss', KAPPA):+.2f} [" in why
    )
    assert f"a rank correlation of {left:+.2f} [" in why
    most = [row["train_loss"] for row in rows if row["interventions.label_noise"] == 0.4]
    assert f"to {numpy.mean(most):.3g} [" in why
    assert why.endswith("while flatness is largest at 20%.")


def test_wrong_labels_are_shown_within_each_way_of_training_too():
    random = numpy.random.default_rng(10)
    rows = []
    for way, sign in (("a", 1), ("b", -1)):
        for noise in (0.0, 0.2, 0.4):
            some = confounded_rows(6, random, variant=way, **{"interventions.label_noise": noise})
            rows += [row | {KAPPA: row[KAPPA] + 100 * sign * noise} for row in some]
    [shown] = find("000-fig-6").analyse(rows).more
    for cells, way in zip(shown.rows, "ab", strict=True):
        own = [row for row in rows if row["variant"] == way]
        assert cells[:2] == [way, 18]
        assert cells[3].value == pytest.approx(ranks(own, "interventions.label_noise", KAPPA))
        assert cells[4].value == pytest.approx(ranks(own, KAPPA, "gap"))
    assert shown.rows[0][3].value > 0.5 > -0.5 > shown.rows[1][3].value
    assert not find("000-fig-6").analyse([row for row in rows if row["variant"] == "a"]).more


# -- Table 6 -----------------------------------------------------------------------------------


def test_how_far_each_augmentation_has_come():
    random = numpy.random.default_rng(10)
    learnt = {"none": 0.9, "basic": 0.6, "auto": 0.5, "mixup": 0.4}
    rows = []
    for way, accuracy in learnt.items():
        for seed, row in enumerate(confounded_rows(6, random, variant=way)):
            row |= {"seed": seed, "train_accuracy": accuracy, "error_gap": row["gap"] ** 3}
            rows.append(row | {"gap": random.normal()})  # not the gap that this paper's table has
    outcome = find("000-table-6").analyse(rows)
    assert outcome.why.startswith(
        "At the end of training the training accuracy is 0.9 [0.9, 0.9] without, 0.6 [0.6, 0.6] "
        "with Basic, 0.5 [0.5, 0.5] with AutoAugment, 0.4 [0.4, 0.4] with Mixup. Over 24 networks"
    )
    left = left_of(rows, KAPPA, "error_gap", ("train_loss", "softmax.gini"))
    assert f"and the gap have a rank correlation of {left:+.2f} [" in outcome.why
    names = [series.name for series in outcome.figure.series]
    assert names == ["None", "Basic", "AutoAugment", "Mixup"]
    older = [{k: v for k, v in row.items() if k != "softmax.gini"} for row in rows]
    assert find("000-table-6").analyse(older).why.endswith("0.4 [0.4, 0.4] with Mixup.")
