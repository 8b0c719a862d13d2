"""Paper 000: what each experiment makes of rows with a known answer, against scipy and numpy.

Tables 1 and 2 are in test_paper_000_trace.py, Table 3 and Fig. 7 in test_paper_000_parts.py.
"""

import dataclasses
import math
from importlib.util import find_spec

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.claims.contrasts import difference, factor, factor_by_seed, ratios
from spiritlevel_lab.papers import find, names
from spiritlevel_lab.papers.judgement import judged
from spiritlevel_lab.papers.paper_000.fig_6 import strengthening
from spiritlevel_lab.papers.paper_000.tasks_dynamics import SHARES
from spiritlevel_lab.population import control
from spiritlevel_lab.statistics import spearman

pytestmark = pytest.mark.sampled(3)  # the others at night

OURS = [name for name in names() if name.startswith("000-") and not find(name).rows_of]
LABEL_NOISE = "interventions.label_noise"
HELD, NOT, OPEN = "held", "not held", "undecided"


def results(outcome):
    return [finding.result for finding in outcome.findings]


def correlated(random, strength, count):
    """Two columns with about this correlation."""
    first, noise = random.normal(size=(2, count))
    return first, strength * first + math.sqrt(1 - strength**2) * noise


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Images of the size of CIFAR-10's."""
    random = numpy.random.default_rng(0)
    x, y = random.integers(0, 256, (24, 3, 32, 32)).astype("uint8"), numpy.arange(24) % 10
    path = tmp_path_factory.mktemp("colours") / "colours.npz"
    numpy.savez(path, x_train=x[:14], y_train=y[:14], x_test=x[14:], y_test=y[14:])
    return str(path)


def test_factor_is_the_geometric_mean_of_scipy():
    before, after = numpy.array([1.0, 2.0, 5.0, 3.0]), numpy.array([2.0, 3.0, 11.0, 7.0])
    found = factor([*zip(before, after, strict=True), (None, 1.0), (0.0, 1.0), (1.0, -1.0)])
    logs = numpy.log(after / before)
    low, high = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert (found.value, found.n) == (pytest.approx(stats.gmean(after / before)), 4)
    assert (found.low, found.high) == (
        pytest.approx(math.exp(low), rel=1e-6),
        pytest.approx(math.exp(high), rel=1e-6),
    )


def test_several_runs_of_a_seed_are_one_pair():
    plain = [{"seed": 0, "m": 1.0}, {"seed": 0, "m": 3.0}, {"seed": 1, "m": 5.0}]
    changed = [{"seed": 0, "m": 4.0}, {"seed": 1, "m": 10.0}, {"seed": 1, "m": None}]
    assert factor_by_seed(plain, changed, "m").n == 2
    assert factor_by_seed(plain, changed, "m").value == pytest.approx(2.0)
    assert difference(changed, plain, "m").value == pytest.approx(3.5)


def test_factor_by_seed_pairs_what_has_the_same_seed():
    plain = [{"seed": seed, "m": seed + 1.0} for seed in range(3)]
    changed = [{"seed": seed, "m": 5 * (seed + 1.0)} for seed in (2, 0, 7)]
    found = factor_by_seed(plain, changed, "m")
    assert (found.value, found.n) == (pytest.approx(5.0), 2)


def test_ratios_stand_beside_differences():
    """One large pair decides the mean of differences; the ratio is 2 in every pair."""
    plain = [{"seed": seed, "m": 10.0**seed} for seed in range(4)]
    changed = [{"seed": seed, "m": 2 * 10.0**seed} for seed in range(4)]
    table = ratios({"plain": plain, "changed": changed}, "plain", ["m"])
    ((group, name, pairs, ratio, change),) = table.rows
    assert (group, name, pairs) == ("changed", "m", 4)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert change.value == pytest.approx(1111 / 4)
    assert change.low < 0


# -- Table 4 -----------------------------------------------------------------------------------


def dynamics_rows(fall, mirror, ways=("slow", "fast"), seeds=3):
    rows = []
    for way in ways:
        for seed in range(seeds):
            row = {"outcome": "epochs", "variant": way, "seed": seed, "train_loss": 0.1}
            row |= {"test_accuracy": 0.9, "error_gap": 0.05 + 0.01 * seed, "head.kappa": 3.0}
            row |= {"task.flatness/first": 10.0 + seed}
            row |= {"task.flatness_against_accuracy": mirror + 0.01 * seed}
            for name in ("flatness", "train_loss", "test_loss", "test_accuracy"):
                row |= {f"task.{name}/{share}": 10.0 + seed for share in SHARES}
            row["task.flatness/100"] = (10.0 + seed) * fall * (1 + 0.01 * seed)
            rows.append(row)
    lost = dict.fromkeys(rows[0]) | {"outcome": "diverged", "variant": "slow", "seed": 9}
    return [*rows, lost]


@pytest.mark.parametrize(
    ("fall", "mirror", "agrees", "parts"),
    [
        (0.2, -0.9, "yes", [HELD, HELD]),
        (0.2, 0.5, "partly", [HELD, NOT]),
        (3.0, -0.5, "partly", [NOT, HELD]),
        (3.0, 0.5, "no", [NOT, NOT]),
        (3.0, -0.01, "no", [NOT, OPEN]),
        (0.99, -0.01, "undecided", [OPEN, OPEN]),
    ],
)
def test_dynamics(fall, mirror, agrees, parts):
    experiment = find("000-table-4")
    outcome = judged(experiment, dynamics_rows(fall, mirror))
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    assert outcome.left_out.startswith("1 run, of which 1 diverged, is left out")
    assert outcome.table.rows[0][-2].value == pytest.approx(fall * stats.gmean([1, 1.01, 1.02]))
    assert set(outcome.reproduced_values) == set(experiment.paper_values)
    assert outcome.reproduced_values["gap of the accuracies, fast"].value == pytest.approx(0.06)


# -- Table 5 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strengths", "agrees", "parts"),
    [
        ((0.9, 0.9), "yes", [HELD, HELD]),
        ((0.0, 0.9), "partly", [OPEN, HELD]),
        ((0.0, -0.9), "no", [OPEN, NOT]),
        ((0.0, -0.2), "no", [OPEN, NOT]),  # 0 is inside, the paper's 0.443 outside
        ((0.0, 0.2), "undecided", [OPEN, OPEN]),
    ],
)
def test_architectures(strengths, agrees, parts):
    random = numpy.random.default_rng(0)
    rows = []
    for name, strength in zip(("vgg16", "densenet121"), strengths, strict=True):
        for gap, kappa in zip(*correlated(random, strength, 24), strict=True):
            row = {"outcome": "epochs", "variant": name, "gap": gap, "head.kappa": math.exp(kappa)}
            rows.append(row | {"train_loss": random.normal(), "softmax.gini": random.normal()})
    outcome = find("000-table-5").analyse([*rows, rows[0] | {"outcome": "diverged"}])
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    dense = [(row["head.kappa"], row["gap"]) for row in rows if row["variant"] == "densenet121"]
    found = outcome.reproduced_values["Pearson, DenseNet-121"]
    assert found.value == pytest.approx(stats.pearsonr(*zip(*dense, strict=True)).statistic)
    rank = outcome.reproduced_values["Spearman, DenseNet-121"]
    assert rank.value == pytest.approx(stats.spearmanr(*zip(*dense, strict=True)).statistic)
    assert str(rank) in str(outcome.findings[1].seen)
    share = outcome.reproduced_values["R², DenseNet-121"]
    assert (share.value, share.high) == pytest.approx(
        (found.value**2, max(found.low**2, found.high**2))
    )
    smallest = 0.0 if found.low < 0 < found.high else min(found.low**2, found.high**2)
    assert share.low == pytest.approx(smallest)
    logs = [(math.log(kappa), gap) for kappa, gap in dense]
    linear = stats.pearsonr(*zip(*logs, strict=True)).statistic
    assert outcome.table.rows[1][3].value == pytest.approx(linear)
    assert set(outcome.reproduced_values) == set(find("000-table-5").paper_values)
    alone = [row for row in rows if row["variant"] == "vgg16"]
    assert results(find("000-table-5").analyse(alone)) == [parts[0], OPEN]


# -- Fig. 6 ------------------------------------------------------------------------------------


def noise_rows(rise, strengths):
    random = numpy.random.default_rng(3)
    rows = []
    for noise, strength in zip((0.0, 0.1, 0.2, 0.4), strengths, strict=True):
        for gap, kappa in zip(*correlated(random, strength, 40), strict=True):
            row = {"outcome": "epochs", LABEL_NOISE: noise, "variant": "slow"}
            row |= {"train_accuracy": 1.0, "test_accuracy": 0.8, "gap": gap}
            row |= {"head.kappa": kappa + rise * noise}
            rows.append(row | {"train_loss": random.normal(), "softmax.gini": random.normal()})
    return rows


@pytest.mark.parametrize(
    ("rise", "strengths", "agrees", "parts"),
    [
        (20.0, (0.0, 0.3, 0.6, 0.9), "yes", [HELD, HELD]),
        (20.0, (0.9, 0.6, 0.3, 0.0), "partly", [HELD, NOT]),
        (0.0, (0.0, 0.3, 0.6, 0.9), "partly", [OPEN, HELD]),
        (-20.0, (0.5, 0.5, 0.5, 0.5), "no", [NOT, OPEN]),
        (0.0, (0.5, 0.5, 0.5, 0.5), "undecided", [OPEN, OPEN]),
    ],
)
def test_label_noise(rise, strengths, agrees, parts):
    rows = noise_rows(rise, strengths)
    outcome = find("000-fig-6").analyse(rows)
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    last = [(row["head.kappa"], row["gap"]) for row in rows if row[LABEL_NOISE] == 0.4]
    theirs = stats.spearmanr(*zip(*last, strict=True)).statistic
    assert outcome.table.rows[-1][:2] == [0.4, 40]
    assert outcome.table.rows[-1][-1].value == pytest.approx(theirs)


def test_difference_of_two_correlations_covers_the_truth():
    """95 % intervals hold the true difference of two known correlations about that often."""
    random = numpy.random.default_rng(5)
    # The rank correlation of a normal pair is 6/π asin(r/2).
    truth = [math.atanh(6 / math.pi * math.asin(r / 2)) for r in (0.2, 0.7)]
    covered = 0
    for _ in range(200):
        less, more = (spearman(*correlated(random, r, 40)) for r in (0.2, 0.7))
        found = strengthening(less, more)
        covered += found.low <= truth[1] - truth[0] <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_three_runs_have_no_interval():
    few = spearman([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert math.isnan(strengthening(few, few).low)


# -- Table 6 -----------------------------------------------------------------------------------


def augmentation_rows(narrower, flatness, slope):
    random = numpy.random.default_rng(1)
    rows = []
    for place, way in enumerate(("none", "basic", "auto", "mixup")):
        for seed in range(8):
            own = random.normal()
            row = {"outcome": "epochs", "variant": way, "seed": seed, "train_accuracy": 1.0}
            row |= {"test_accuracy": 0.7, "error_gap": 0.3 - narrower * bool(place) + 0.005 * own}
            grown = 1.0 if place == 0 else flatness
            rows.append(
                row | {"head.kappa": (2.0 + 0.02 * (slope * own + random.normal())) * grown}
            )
    return rows


@pytest.mark.parametrize(
    ("narrower", "flatness", "slope", "agrees", "parts"),
    [
        (0.1, 2.0, 3.0, "yes", [HELD, HELD, HELD]),
        (0.1, 2.0, -3.0, "partly", [HELD, HELD, NOT]),
        (0.1, 0.5, -3.0, "partly", [HELD, NOT, NOT]),
        (-0.1, 0.5, -3.0, "no", [NOT, NOT, NOT]),
        (0.0, 1.0, 0.0, "undecided", [OPEN, OPEN, OPEN]),
    ],
)
def test_augmentation(narrower, flatness, slope, agrees, parts):
    rows = augmentation_rows(narrower, flatness, slope)
    experiment = find("000-table-6")
    outcome = experiment.analyse(rows)
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    assert set(outcome.reproduced_values) == set(experiment.paper_values)
    gaps = {
        way: numpy.array([row["error_gap"] for row in rows if row["variant"] == way])
        for way in ("none", "basic")
    }
    spread = outcome.reproduced_values["gap of the accuracies, standard deviation, Basic"]
    assert (spread.value, spread.n) == (pytest.approx(numpy.std(gaps["basic"], ddof=1)), 8)
    change = outcome.table.rows[1][-2]
    low, high = stats.ttest_rel(gaps["basic"], gaps["none"]).confidence_interval()
    assert (change.low, change.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize("way", ["none", "mixup"])
def test_augmentation_without_one_of_the_ways(way):
    rows = [row for row in augmentation_rows(0.1, 2.0, 3.0) if row["variant"] != way]
    outcome = find("000-table-6").analyse(rows)
    assert (outcome.agrees, results(outcome)) == ("partly", [OPEN, OPEN, HELD])
    assert len(outcome.table.rows) == 3


# -- Table 7 -----------------------------------------------------------------------------------


def stopping_rows(fired, better, flatter):
    ends = {"loss": (1, 40, 0.0, 1.0), "both": (0, 100, better, flatter)}
    ends |= {"trend": (1, 50, 0.01, 0.9), "flatness": (fired, 100, better, flatter)}
    rows = []
    for seed in range(10):
        row = {"outcome": "epochs", "seed": seed, "test_accuracy": 0.8}
        for rule, (stopped, epochs, more, by) in ends.items():
            row[f"task.stopped/{rule}"] = float(stopped and (seed == 0 or rule != "flatness"))
            row[f"task.epochs/{rule}"] = float(epochs + seed)
            row[f"task.accuracy/{rule}"] = 0.8 + 0.01 * seed + more * (1 + 0.1 * seed)
            row[f"task.flatness/{rule}"] = (400.0 + seed) * by * (1 + 0.001 * seed * (by != 1))
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("fired", "better", "flatter", "agrees", "parts"),
    [
        (0, 0.02, 0.6, "yes", [HELD, HELD, HELD]),
        (1, 0.02, 0.6, "partly", [NOT, HELD, HELD]),
        (0, -0.02, 0.6, "partly", [HELD, HELD, NOT]),
        (0, -0.02, 1.5, "partly", [HELD, NOT, NOT]),
        (1, -0.02, 1.5, "no", [NOT, NOT, NOT]),
        (1, 0.0, 1.0, "no", [NOT, OPEN, OPEN]),
    ],
)
def test_stopping(fired, better, flatter, agrees, parts):
    rows = stopping_rows(fired, better, flatter)
    experiment = find("000-table-7")
    outcome = experiment.analyse(rows)
    assert (outcome.agrees, results(outcome)) == (agrees, parts)
    assert f"stopped {fired} of 10 runs" in outcome.conclusion
    share = outcome.table.rows[1][2]
    wilson = stats.binomtest(fired, 10).proportion_ci(method="wilson")
    assert (share.value, share.high) == (fired / 10, pytest.approx(wilson.high))
    times = {name for name in experiment.paper_values if name.startswith("seconds, ")}
    assert len(times) == 3
    assert (
        set(outcome.reproduced_values) == set(experiment.paper_values) - times
    )  # ours are not known
    assert outcome.reproduced_values["epochs, validation loss"].value == pytest.approx(44.5)
    assert "The trend rule stopped 10 of 10, between epochs 50 and 59; where" in outcome.conclusion


@pytest.mark.parametrize(("stopped", "said"), [([7], "1 of 10, at epoch 57;"), ([], "0 of 10;")])
def test_epochs_are_those_of_the_runs_that_the_trend_stopped(stopped, said):
    rows = stopping_rows(0, 0.02, 0.6)
    for row in rows:
        row["task.stopped/trend"] = float(row["seed"] in stopped)
    assert f"The trend rule stopped {said} where" in find("000-table-7").analyse(rows).conclusion


# -- All of them -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("000-table-4", dynamics_rows(0.2, -0.9, ways=("slow",), seeds=1)),
        ("000-table-5", []),
        ("000-table-6", augmentation_rows(0.1, 2.0, 3.0)[:1]),
        # That none of no runs was stopped would be true, and say nothing.
        ("000-table-7", []),
        ("000-fig-6", noise_rows(20.0, (0.0, 0.3, 0.6, 0.9))[::80]),
    ],
)
def test_too_few_runs_decide_nothing(name, rows):
    outcome = find(name).analyse(rows)
    assert outcome.agrees == "undecided"
    assert set(results(outcome)) == {OPEN}


@pytest.mark.parametrize("name", OURS)
def test_every_preset_can_be_checked(name, colours):
    """On small images of its own in the place of data that must be fetched first."""
    study = control.find(name)
    assert {"quick", "paper", "h200"} <= set(study.presets)
    for chosen in (study, *(study.with_preset(preset) for preset in study.presets)):
        if "efficientnet" in str(chosen.model) and not find_spec("efficientnet_lite_pytorch"):
            continue
        data = {"name": colours if "digits" not in str(chosen.data) else "digits"}
        if "validation" in (chosen.data if isinstance(chosen.data, dict) else ()):
            data["validation"] = chosen.data["validation"]
        if "init_from" in str(chosen.model):  # weights that another study trains
            model = {k: v for k, v in chosen.model.items() if k not in ("init_from", "init_head")}
            chosen = dataclasses.replace(chosen, model=model)
        control.check(dataclasses.replace(chosen, data=data, presets={}))
