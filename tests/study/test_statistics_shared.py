"""Intervals over what settings share, against a slow loop and against planted populations."""

import itertools
import math

import numpy
import pytest
from scipy import stats

from spiritlevel.study.statistics import clustered, levels, summary
from spiritlevel.study.statistics.shared import coarsest, over_shared, uncounted


def crossed(sizes, runs):
    """Every combination of values `runs` times: by axis, its value in each run."""
    settings = [each for each in itertools.product(*map(range, sizes)) for _ in range(runs)]
    return {"abcdef"[i]: [each[i] for each in settings] for i in range(len(sizes))}


def planted(random, axes, shares, rho):
    """Two columns with a correlation of rho; by axes, their share of the variance."""
    num = len(axes["a"])
    points = math.sqrt(1 - sum(shares.values())) * normal(random, rho, num)
    for names, share in shares.items():
        groups = list(zip(*(axes[name] for name in names), strict=True))
        place = {group: i for i, group in enumerate(dict.fromkeys(groups))}
        effects = normal(random, rho, len(place))
        points += math.sqrt(share) * effects[[place[group] for group in groups]]
    return points[:, 0], points[:, 1]


def normal(random, rho, num):
    return random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], num)


def settings_of(axes):
    return [str(each) for each in zip(*axes.values(), strict=True)]


@pytest.mark.parametrize(
    ("sizes", "shared", "left"),
    [
        ((6, 2, 2), ["a", "b and c"], ""),
        ((3, 3, 3), ["a and b", "a and c", "b and c"], ""),
        ((4, 3), ["a"], ""),
        ((3, 3), [], "ab"),  # either has too few values, and both are the settings
        ((8,), [], ""),
        ((2, 2, 2, 2), [f"{x} and {y}" for x, y in itertools.combinations("abcd", 2)], ""),
        ((1, 4, 1, 2), ["b"], ""),  # what never varies is nothing to share
    ],
)
def test_groups_are_as_coarse_as_can_be_counted(sizes, shared, left):
    assert list(coarsest(crossed(sizes, 2))) == shared
    assert uncounted(crossed(sizes, 2)) == tuple(left)


def test_a_clear_correlation_says_what_cannot_be_counted():
    axes = crossed((3, 3), 9)
    random = numpy.random.default_rng(1)
    said = "Settings with the same a or b may be alike, too. With fewer than 4 values"
    for rho, is_clear in ((0.9, True), (0.0, False)):
        x, y = planted(random, axes, {"a": 0.2}, rho)
        found = levels(x, y, settings_of(axes), axes=axes)
        assert (said in found.sentence) == is_clear
        rows = [
            {"settings": {"a": a, "b": b, "seed": i}, "measures": {"m": u, "n": u}, "target": v}
            for i, (a, b, u, v) in enumerate(zip(*axes.values(), x, y, strict=True))
        ]
        notes = summary(rows, resamples=0).notes()
        assert sum(said in note for note in notes) == is_clear  # once, not for each measure


def test_axes_that_go_together_are_not_twice_as_many_groups():
    axes = {"lr": [1, 2, 3] * 4, "batch": [32, 64, 128] * 4, "decay": [0] * 6 + [1] * 6}
    assert coarsest(axes) == {}  # 3 pairs of rate and batch size


def test_values_that_cannot_be_hashed_are_told_apart():
    axes = {"hidden": [[8], [8, 8], [16], [16, 16]] * 2, "lr": [1] * 4 + [2] * 4}
    assert list(coarsest(axes)) == ["hidden"]
    names = {"x": ["1, 2", "1", "3", "4", "5"] * 2, "y": ["3", "2, 3", "", "", ""] * 2}
    assert len(set(coarsest(names | {"z": [0] * 5 + [1] * 5})["x"])) == 5


@pytest.mark.parametrize("kind", ["pearson", "spearman", "kendall"])
def test_equals_a_loop_over_the_groups(kind):
    of_scipy = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    axes = crossed((5, 2, 2), 3)
    x, y = planted(numpy.random.default_rng(0), axes, {"a": 0.5}, 0.5)
    found = over_shared(x, y, axes, kind=kind)["a"]
    group = numpy.array(axes["a"])
    z = [math.atanh(of_scipy[kind](x[group != left], y[group != left])[0]) for left in range(5)]
    middle = math.atanh(of_scipy[kind](x, y)[0])
    half = stats.t.ppf(0.975, 4) * math.sqrt(4 / 5 * sum((each - middle) ** 2 for each in z))
    ends = [math.tanh(middle - half), math.tanh(middle + half)]
    assert [found.low, found.high] == pytest.approx(ends)
    assert (found.n, found.clusters) == (60, 5)
    assert found.interval_method == "jackknife over 5 groups by a, Fisher z"


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [((6, 2, 2), {"a": 0.7, "abc": 0.1}), ((4, 3, 2), {"a": 0.7, "abc": 0.1})],
)
def test_covers_the_truth_where_one_axis_decides(sizes, shares):
    """Of 300 intervals of 95 %, 91 to 99 % hold the truth; of those over settings, far fewer."""
    random = numpy.random.default_rng(1)
    axes = crossed(sizes, 4)
    truth = 6 / math.pi * math.asin(0.3 / 2)  # Spearman's, of a normal sample
    hits = numpy.zeros(2)
    for _ in range(300):
        x, y = planted(random, axes, shares, 0.3)
        both = over_shared(x, y, axes)["a"], clustered(x, y, settings_of(axes))
        hits += [found.low <= truth <= found.high for found in both]
    over_groups, over_settings = hits / 300
    assert 0.91 <= over_groups <= 0.99
    assert over_settings < 0.8


@pytest.fixture
def one_axis_decides():
    """Five rates at two batch sizes, three runs each: a rate says nearly all of a network."""
    axes = {"lr": [0, 1, 2, 3, 4] * 6, "batch_size": ([8] * 5 + [16] * 5) * 3}
    random = numpy.random.default_rng(3)
    values = [lr + 0.1 * random.normal() for lr in axes["lr"]]
    target = [[1, 0, 3, 4, 2][lr] + 0.1 * random.normal() for lr in axes["lr"]]
    return axes, values, target


def test_a_correlation_of_few_values_is_in_doubt(one_axis_decides):
    axes, values, target = one_axis_decides
    found = levels(values, target, settings_of(axes), axes=axes)
    assert found.clustered.low > 0
    assert (found.widest, found.doubt) == ("lr", "lr")
    said = (
        "Settings with the same lr may be alike, too: counting the 5 groups of them and not the 10 "
        "settings, the interval is ["
    )
    assert found.caveat.startswith(said)
    assert found.caveat.endswith("], which contains 0.")
    assert found.sentence.endswith(found.caveat)
    alone = levels(values, target, settings_of(axes))
    assert (alone.widest, alone.doubt, alone.caveat) == ("", "", "")


def test_a_correlation_that_every_value_has_is_not(one_axis_decides):
    axes, values, _ = one_axis_decides
    found = levels(values, [2 * value for value in values], settings_of(axes), axes=axes)
    assert found.widest == "lr"
    assert found.doubt == found.caveat == ""
    random = numpy.random.default_rng(0)
    none = levels(values, random.normal(size=30), settings_of(axes), axes=axes)
    assert none.clustered.low < 0 < none.clustered.high
    assert none.doubt == ""  # there is nothing that could be doubted


def test_the_verdict_says_so(one_axis_decides):
    axes, values, target = one_axis_decides
    rows = [
        {
            "settings": {name: column[i] for name, column in axes.items()} | {"seed": i // 10},
            "measures": {"m": values[i]},
            "target": target[i],
        }
        for i in range(30)
    ]
    found = summary(rows, resamples=0)
    doubt = "; unclear if settings with the same lr count once"
    assert found["m"].verdict == f"rises with the target{doubt}"
    text = str(found)
    shared = found["m"].levels["spearman"].shared["lr"]
    assert f"[{shared.low:+.2f}, {shared.high:+.2f}] (5 by lr)" in text
    assert "Settings with the same lr may be alike, too. If they count once, the interval" in text
    assert text.splitlines()[-1].endswith(" contain 0: m.")
    assert found.to_dict()["measures"]["m"]["levels"]["spearman"]["shared"]["lr"]["clusters"] == 5
