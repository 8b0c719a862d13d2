"""Sign error against a transcription of what the code of Dziugaite et al. 2020 computes."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import sign_error

GRID = {"lr": [0.1, 0.03, 0.01], "width": [8, 16], "optimizer": ["sgd", "adam"]}


def population(num_seeds: int, seed: int = 0, *, ties: bool = False):
    rng = np.random.default_rng(seed)
    settings = [
        {**dict(zip(GRID, combination, strict=True)), "seed": s}
        for combination in itertools.product(*GRID.values())
        for s in range(num_seeds)
    ]
    gap = 0.1 + 0.03 * rng.standard_normal(len(settings))
    measure = gap + 0.03 * rng.standard_normal(len(settings))
    if ties:
        gap, measure = np.round(gap, 2), np.round(measure, 2)
    return measure, gap, settings


def naive(measure, gap, settings, *, num_test, cell, min_effective=12.0):
    """Every ordered pair of runs, one at a time; environments as unordered pairs of values."""
    losses, weights, squares = defaultdict(float), defaultdict(float), defaultdict(float)
    runs = list(zip(settings, measure, gap, strict=True))
    for s1, c1, g1 in runs:
        for s2, c2, g2 in runs:
            differing = [name for name in GRID if s1[name] != s2[name]]
            if len(differing) != 1:
                continue
            axis = differing[0]
            weight = 1.0
            if num_test is not None:
                phi = 2 * math.exp(-2 * num_test * (abs(g1 - g2) / 2) ** 2)
                weight = max(0.0, 1 - phi) ** 2
                weight = weight - 0.5 if weight > 0.5 else 0.0
            error = (1 - np.sign(c1 - c2) * np.sign(g1 - g2)) / 2
            others = tuple(s1[name] for name in GRID if name != axis) if cell else ()
            key = (axis, s1[axis], s2[axis], others)  # an ordered pair of values, as in their code
            losses[key] += error * weight
            weights[key] += weight
            squares[key] += weight**2
    found = {
        key: losses[key] / weights[key]
        for key in weights
        if weights[key] > 0 and weights[key] ** 2 / squares[key] >= min_effective - 1e-9
    }
    return found, len(weights)


@pytest.mark.parametrize("pooling", ["change", "cell"])
@pytest.mark.parametrize("num_test", [None, 10_000, 500])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_the_transcription(pooling, num_test, ties):
    measure, gap, settings = population(5, ties=ties)
    found = sign_error(measure, gap, settings, num_test=num_test, pooling=pooling)
    truth, num_environments = naive(
        measure, gap, settings, num_test=num_test, cell=pooling == "cell"
    )
    if not truth:
        assert math.isnan(found.robust)
        return
    assert found.robust == pytest.approx(max(truth.values()), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(list(truth.values())), rel=1e-12)
    assert 2 * len(found.environments) == len(truth)  # theirs come once in each direction
    assert 2 * (len(found.environments) + len(found.too_few)) == num_environments
    for environment in found.environments:
        same = [
            error
            for (axis, a, b, _), error in truth.items()
            if (axis, {str(a), str(b)})
            == (environment.axis, {environment.first, environment.second})
        ]
        assert any(environment.error == pytest.approx(error, rel=1e-12) for error in same)


def test_the_transcription_was_not_empty():
    # Meta-test: both kinds of environments, weighted too, have enough pairs to be compared.
    measure, gap, settings = population(5)
    for cell in (False, True):
        assert naive(measure, gap, settings, num_test=10_000, cell=cell)[0]


def test_extremes():
    measure, gap, settings = population(4)
    perfect = sign_error(gap, gap, settings)
    assert (perfect.robust, perfect.mean) == (0.0, 0.0)
    assert sign_error(-gap, gap, settings).robust == 1.0
    assert sign_error(np.zeros_like(gap), gap, settings, num_test=10_000).robust == pytest.approx(
        0.5
    )
    one, other = sign_error(measure, gap, settings), sign_error(np.exp(measure), gap, settings)
    assert one == other
    turned = sign_error(-measure, gap, settings)
    assert turned.mean == pytest.approx(1 - one.mean)


def test_the_worst_environment_is_found_where_the_average_hides_it():
    _, gap, settings = population(4)
    gap = np.array([0.01 * s["width"] for s in settings]) + 0.001 * gap
    gap += np.array([0.05 if s["lr"] == 0.1 else 0.0 for s in settings])
    measure = np.array([s["width"] for s in settings]) - np.array(
        [100.0 if s["lr"] == 0.1 else 0.0 for s in settings]
    )
    found = sign_error(measure, gap, settings, num_test=10_000)
    assert found.robust == 1.0
    assert found.worst in ("lr: 0.01 → 0.1", "lr: 0.03 → 0.1")
    assert found.mean < 0.8


def test_weights_discount_what_is_noise():
    # One axis; the measure errs only where the gaps nearly agree.
    settings = [{"lr": lr, "seed": s} for lr in (1, 2) for s in range(8)]
    gap = [0.1] * 4 + [0.3] * 4 + [0.101] * 4 + [0.5] * 4
    measure = [2.0] * 4 + [3.0] * 4 + [1.0] * 4 + [9.0] * 4
    blind = sign_error(measure, gap, settings)
    aware = sign_error(measure, gap, settings, num_test=1000)
    assert blind.robust == pytest.approx(16 / 64)
    assert aware.robust == 0.0
    [environment] = aware.environments
    assert (environment.pairs, environment.effective) == (64, pytest.approx(48, rel=1e-3))


def test_the_range_of_the_loss_scales_the_noise():
    measure, gap, settings = population(4)
    one = sign_error(measure, gap, settings, num_test=2000)
    other = sign_error(measure, 5 * gap, settings, num_test=2000, loss_range=5)
    assert other.robust == pytest.approx(one.robust, rel=1e-12)
    assert [e.weight for e in other.environments] == pytest.approx(
        [e.weight for e in one.environments], rel=1e-9
    )


def test_failed_runs_are_left_out_and_counted():
    measure, gap, settings = population(4)
    truth = sign_error(measure[1:], gap[1:], settings[1:])
    found = sign_error([None, *measure[1:]], gap, settings)
    assert (found.n, found.excluded) == (47, 1)
    assert found.environments == truth.environments


def test_the_order_of_the_runs_does_not_matter():
    measure, gap, settings = population(4)
    order = np.random.default_rng(0).permutation(len(gap))
    one = sign_error(measure, gap, settings)
    other = sign_error(measure[order], gap[order], [settings[i] for i in order])
    key = str
    assert [(str(e), e.error) for e in sorted(one.environments, key=key)] == [
        (str(e), pytest.approx(e.error)) for e in sorted(other.environments, key=key)
    ]


def test_too_few_pairs_say_so():
    measure, gap, settings = population(2)
    found = sign_error(measure, gap, settings, pooling="cell")
    assert math.isnan(found.robust)
    assert math.isnan(found.mean)
    assert (found.environments, found.worst, len(found.too_few)) == ((), "", 12 + 6 + 6)
    assert found.reason == (
        "none of 24 environments has 12 effective pairs (the most is 4): more seeds, or a smaller "
        "'min_effective'"
    )
    assert str(found.too_few[0]) == "lr: 0.01 → 0.03 at width=8, optimizer=sgd"
    assert sign_error(measure, gap, settings, pooling="cell", min_effective=4).reason == ""


def test_nothing_to_compare():
    found = sign_error([1, 2], [1, 2], [{"lr": 1, "w": 1}, {"lr": 2, "w": 2}])
    assert found.reason == "no two runs differ in exactly one hyperparameter"


def test_the_rule_is_in_the_result():
    measure, gap, settings = population(4)
    assert sign_error(measure, gap, settings).rule == (
        "one hyperparameter changed, others pooled; pairs weighted alike; ≥ 12 effective pairs"
    )
    assert sign_error(measure, gap, settings, num_test=500, pooling="cell").rule == (
        "one hyperparameter changed, others held; Hoeffding weights for 500 test examples of range "
        "1; ≥ 12 effective pairs"
    )


def test_a_target_beyond_the_range_of_the_loss_is_refused():
    measure, gap, settings = population(4)
    with pytest.raises(SpiritlevelError) as refusal:
        sign_error(measure, [2.5, *gap[1:]], settings, num_test=500)
    assert "Got 1 and a target of 2.5. Cross-entropy has no bound" in str(refusal.value)
    assert sign_error(measure, [2.5, *gap[1:]], settings).excluded == 0


def test_huge_numbers_have_an_order_too():
    measure, gap, settings = population(4)
    truth = sign_error(np.sign(measure - 0.1), gap, settings)
    assert sign_error(np.sign(measure - 0.1) * 1.5e308, gap, settings) == truth


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_test": 0}, "or None to weigh all pairs alike. Got 0."),
        ({"loss_range": 0.0}, "must be > 0. Got 0.0. The 0-1 loss has 1."),
        ({"pooling": "all"}, "must be 'change' or 'cell'. Got 'all'."),
        ({"min_effective": 0}, "must be > 0. Got 0. The paper takes 12."),
    ],
)
def test_refusals(options, text):
    with pytest.raises(SpiritlevelError) as refusal:
        sign_error([1, 2], [1, 2], [{"lr": 1}, {"lr": 2}], **options)
    assert text in str(refusal.value)
