"""Intervals over what settings share, against a slow loop and against planted populations."""

import itertools
import math

import numpy
import pytest
from scipy import stats

from spiritlevel_lab.statistics import clustered, levels, summary
from spiritlevel_lab.statistics.clusters import coarsest, groups_that_share


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
    ("sizes", "shared"),
    [
        ((6, 2, 2), ["a", "b and c"]),
        ((3, 3, 3), ["a and b", "a and c", "b and c"]),
        ((4, 3), ["a"]),
        ((3, 3), []),  # either has too few values, and both are the settings
        ((8,), []),
        ((2, 2, 2, 2), [f"{x} and {y}" for x, y in itertools.combinations("abcd", 2)]),
        ((1, 4, 1, 2), ["b"]),  # what never varies is nothing to share
    ],
)
def test_groups_are_as_coarse_as_can_be_counted(sizes, shared):
    assert list(coarsest(crossed(sizes, 2))) == shared


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
    found = clustered(x, y, groups_that_share(axes)["a"], kind=kind, called="groups by a")
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
        groups = groups_that_share(axes)["a"], settings_of(axes)
        both = [clustered(x, y, each) for each in groups]
        hits += [found.low <= truth <= found.high for found in both]
    over_groups, over_settings = hits / 300
    assert 0.91 <= over_groups <= 0.99
    assert over_settings < 0.8


def seeded(random, settings, seeds, share):
    """Rows of a study whose measure and target are unrelated; a seed decides a share of both."""
    rows = []
    of_seed, of_setting = random.normal(size=(2, seeds)), random.normal(size=(2, settings))
    for setting, seed in itertools.product(range(settings), range(seeds)):
        rest = math.sqrt((1 - share) / 2) * (of_setting[:, setting] + random.normal(size=2))
        value, target = math.sqrt(share) * of_seed[:, seed] + rest
        given = {"lr": setting % 4, "batch": setting // 4, "seed": seed}
        rows.append({"settings": given, "measures": {"m": value}, "target": target})
    return rows


@pytest.mark.parametrize(("settings", "seeds"), [(8, 5), (24, 4)])
def test_seeds_that_settings_share_are_counted(settings, seeds):
    """Of 60 studies in which seeds decide a half: those over settings alone are right in few."""
    random = numpy.random.default_rng(seeds)
    found = [
        summary(seeded(random, settings, seeds, 0.5))["m"].levels["spearman"] for _ in range(60)
    ]
    held = [
        numpy.mean([each.low <= 0 <= each.high for each in looks])
        for looks in (
            [each.judged for each in found],
            [each.within for each in found],
            [each.clustered for each in found],
        )
    ]
    assert held[0] >= 0.9
    assert held[1] >= 0.85  # of 60
    assert held[2] < 0.9


def test_what_settings_share_is_counted_with_one_seed_too():
    random = numpy.random.default_rng(0)
    axes = crossed((6, 2, 2), 1)
    by_runs = clear = 0
    for _ in range(60):
        x, y = planted(random, axes, {"a": 0.8}, 0.0)
        rows = [
            {"settings": {"a": a, "b": b, "c": c, "seed": 0}, "measures": {"m": u}, "target": v}
            for a, b, c, u, v in zip(*axes.values(), x, y, strict=True)
        ]
        row = summary(rows)["m"]
        assert not row.levels
        assert row.shared["a"].clusters == 6
        assert row.judged.fixed == ("b", "c")
        by_runs += row.spearman.verdict.startswith(("rises", "falls"))
        clear += row.verdict.startswith(("rises", "falls"))
    assert by_runs >= 10
    assert clear <= 6  # of 60: intervals of 95 %


@pytest.fixture
def one_axis_decides():
    """Five rates at two batch sizes, three runs each: a rate says nearly all of a network."""
    axes = {"lr": [0, 1, 2, 3, 4] * 6, "batch_size": ([8] * 5 + [16] * 5) * 3}
    random = numpy.random.default_rng(3)
    values = [lr + 0.1 * random.normal() for lr in axes["lr"]]
    target = [[1, 0, 3, 4, 2][lr] + 0.1 * random.normal() for lr in axes["lr"]]
    return axes, values, target


def test_a_correlation_of_few_values_is_not_clear(one_axis_decides):
    axes, values, target = one_axis_decides
    found = levels(values, target, settings_of(axes), axes=axes)
    assert found.clustered.low > 0 > found.judged.low
    assert (found.judged.over, found.judged.count) == ("groups with the same lr", 5)
    assert found.judged.p > 0.05
    said = "Counting the 10 settings alone, the interval would be ["
    assert found.doubt.startswith(said)
    assert (
        "; over 5 groups with the same lr, with and without batch_size held fixed it is ["
        in found.doubt
    )
    assert found.doubt.endswith("], which contains 0.")
    assert found.sentence.endswith(found.doubt)
    alone = levels(values, target, settings_of(axes))
    assert (alone.widest, alone.doubt) == ("", "")


def test_a_correlation_that_every_value_has_is_clear(one_axis_decides):
    axes, values, _ = one_axis_decides
    found = levels(values, [2 * value for value in values], settings_of(axes), axes=axes)
    assert found.widest == "lr"
    assert found.judged.is_clear
    assert found.doubt == ""
    random = numpy.random.default_rng(0)
    none = levels(values, random.normal(size=30), settings_of(axes), axes=axes)
    assert none.clustered.low < 0 < none.clustered.high
    assert none.doubt == ""  # there is nothing that could be doubted


def test_the_verdict_rests_on_the_widest_interval(one_axis_decides):
    axes, values, target = one_axis_decides
    rows = [
        {
            "settings": {name: column[i] for name, column in axes.items()} | {"seed": i // 10},
            "measures": {"m": values[i]},
            "target": target[i],
        }
        for i in range(30)
    ]
    found = summary(rows)
    assert found["m"].verdict == "no clear association at this n"
    assert found["m"].holm["judged"] == found["m"].judged.p > 0.05
    assert "Here it is over 5 groups with the same lr" in str(found)
    kept = found.to_dict()["measures"]["m"]
    assert kept["judged"]["over"] == "groups with the same lr"
    assert kept["judged"]["fixed"] == ["batch_size", "seed"]
    parts = kept["parts_of_the_judged"]["levels"]["spearman"]
    assert parts["shared"]["lr"]["clusters"] == 5
