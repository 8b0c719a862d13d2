"""The standing simulation: what the rules of judgement say of populations whose truth is known.

By day a few populations with wide limits, at night 400 of each. `python test_rules.py 400` prints
the table of `docs/studies.md`.
"""

import dataclasses
import functools
import itertools
import math
import sys

import numpy
import pytest

from spiritlevel_lab.statistics import levels, summary

NIGHT = 400  # populations


@dataclasses.dataclass(frozen=True)
class Design:
    """Settings, seeds, and what decides: shares of the variance by axis, "seed" and "setting"."""

    sizes: tuple[int, ...]
    seeds: int
    shares: dict[str, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def columns(self):
        """The axes of every run, its setting and its seed."""
        settings = list(itertools.product(*map(range, self.sizes)))
        axes = numpy.repeat(numpy.array(settings), self.seeds, axis=0).T
        places = {"setting": numpy.repeat(numpy.arange(len(settings)), self.seeds)}
        places["seed"] = numpy.tile(numpy.arange(self.seeds), len(settings))
        return places | {"abc"[i]: column for i, column in enumerate(axes)}

    def draw(self, random, rho):
        """Two columns whose every part has this correlation; "setting" 0.1 if nothing is said."""
        shares = {"setting": 0.1} | self.shares
        num = len(self.columns["seed"])
        points = math.sqrt(1 - sum(shares.values())) * normal(random, rho, num)
        for name, share in shares.items():
            place = self.columns[name]
            points += math.sqrt(share) * normal(random, rho, place.max() + 1)[place]
        return points.T

    def levels(self, x, y):
        """What the rules say of them."""
        axes = {name: list(c) for name, c in self.columns.items() if name in "abc"}
        return levels(x, y, list(self.columns["setting"]), axes=axes, seeds=self.columns["seed"])


def normal(random, rho, num):
    return random.multivariate_normal([0, 0], [[1, rho], [rho, 1]], num)


DESIGNS = {
    "6 × 2 × 2, nothing decides": Design((6, 2, 2), 4),
    "6 × 2 × 2, the axis with 6 values": Design((6, 2, 2), 4, {"a": 0.7}),
    "6 × 2 × 2, one with 2 values": Design((6, 2, 2), 4, {"b": 0.7}),
    "4 × 3 × 2, the axis with 4 values": Design((4, 3, 2), 4, {"a": 0.7}),
    "4 × 3 × 2, that with 3 values": Design((4, 3, 2), 4, {"b": 0.7}),
    "3 × 3, one axis": Design((3, 3), 4, {"a": 0.7}),
    "24 settings, 4 seeds, the seed": Design((24,), 4, {"seed": 0.5}),
    "24 settings, 3 seeds, the seed": Design((24,), 3, {"seed": 0.5}),
    "8 settings, 5 seeds, the seed": Design((8,), 5, {"seed": 0.5}),
}
NO_INTERVAL = "3 × 3, one axis"


@dataclasses.dataclass(frozen=True)
class Found:
    """Shares of populations."""

    settings: float  # clear if settings alone are counted
    judged: float  # clear by the widest honest interval
    within: float  # clear within settings
    covered: float  # whose judged interval holds the truth, or that have none


def look(name, rho, num, seed=0):
    """What is said of so many populations."""
    design, random = DESIGNS[name], numpy.random.default_rng(seed)
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's, of a normal population
    found = [design.levels(*design.draw(random, rho)) for _ in range(num)]
    return Found(
        settings=numpy.mean([each.clustered.low * each.clustered.high > 0 for each in found]),
        judged=numpy.mean([each.judged.is_clear for each in found]),
        within=numpy.mean([each.within.p < 0.05 - 1e-12 for each in found]),
        covered=numpy.mean(
            [not (each.judged.low > truth or each.judged.high < truth) for each in found]
        ),
    )


@pytest.mark.parametrize("name", list(DESIGNS)[1:3])
def test_a_true_null_is_seldom_clear(name):
    """Of 40 populations: 2 are expected at most, and a third where settings alone count."""
    found = look(name, 0.0, 40, seed=5)
    assert found.judged <= 4 / 40
    assert found.within <= 6 / 40
    assert found.settings >= 8 / 40  # so the population is one that needs the rule


@pytest.mark.nightly
@pytest.mark.parametrize("name", list(DESIGNS))
def test_false_positives_and_coverage(name):
    """False positives of at most 7 %, mostly fewer: the widest interval is a cautious one."""
    null, true = look(name, 0.0, NIGHT), look(name, 0.3, NIGHT, seed=1)
    assert null.judged <= 0.07
    assert 0.02 <= null.within <= 0.085  # 5 % and three standard errors
    assert null.covered >= 0.93
    assert true.covered >= 0.93
    assert (null.judged == 0.0 and true.judged == 0.0) or name != NO_INTERVAL


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in DESIGNS if name.startswith("6 × 2 × 2")])
def test_power(name):
    found = look(name, 0.7, NIGHT)
    assert found.judged >= (0.9 if name.endswith("nothing decides") else 0.4)
    assert found.within >= 0.95


def simpson(random):
    """Within settings they rise together, with ρ = 0.6; from setting to setting one falls."""
    of_settings = normal(random, -0.9, 12).repeat(4, axis=0)
    return (4.0 * of_settings + normal(random, 0.6, 48)).T


def test_signs_of_the_levels_are_told_apart():
    """Of 30 populations, 12 settings with 4 seeds each."""
    random, design = numpy.random.default_rng(0), Design((12,), 4)
    found = [design.levels(*simpson(random)) for _ in range(30)]
    assert sum(each.judged.low > 0 for each in found) == 0
    assert sum(each.judged.high < 0 for each in found) >= 20
    assert sum(each.within.low > 0 for each in found) >= 20
    assert sum(each.within.high < 0 for each in found) == 0
    assert sum(each.disagrees for each in found) >= 28


def confounded(random, error, num=96):
    """Rows of unrelated measure and target that share a cause, which is seen with an error."""
    cause = random.normal(size=num)
    value, target = cause + 0.5 * random.normal(size=(2, num))
    seen = cause + error * random.normal(size=num)
    return [
        {
            "settings": {"lr": i // 4, "seed": i % 4},
            "measures": {"m": value[i]},
            "target": target[i],
            "confounders": {"cause": seen[i]},
            "errors": {"cause": error},
        }
        for i in range(num)
    ]


def given(error, num):
    """Shares clear given the confounder: as seen, and by a verdict that knows its error."""
    random = numpy.random.default_rng(0)
    seen = verdicts = 0
    for _ in range(num):
        row = summary(confounded(random, error))["m"]
        seen += row.given.is_clear
        verdicts += row.verdict.endswith("also given the confounders")
    return seen / num, verdicts / num


def test_an_error_that_was_recorded_takes_findings_away():
    seen, verdicts = given(0.7, 25)
    assert seen >= 0.4
    assert verdicts <= 0.2


@pytest.mark.nightly
@pytest.mark.parametrize("error", [0.0, 0.3, 0.5, 0.7])
def test_confounders_with_an_error(error):
    """0, 4, 7 and 12 % were found: ranks leave a little of the confounder behind."""
    seen, verdicts = given(error, NIGHT)
    assert verdicts <= 0.08 + 0.1 * error
    assert (seen > 0.2) == (error > 0)


def table(num):
    """The rows of the table, with so many populations each."""
    for name in DESIGNS:
        null, true, strong = (look(name, rho, num, seed=i) for i, rho in enumerate((0, 0.3, 0.7)))
        shares = (null.settings, null.judged, null.within, true.covered, strong.judged)
        yield [name, *shares, strong.within]


if __name__ == "__main__":
    for name, *shares in table(int(sys.argv[1])):
        print(
            "|", name, "|", " | ".join(f"{100 * share:.0f} %" for share in shares), "|", flush=True
        )
    for error in (0.0, 0.3, 0.5, 0.7):
        print(f"error {error}:", *given(error, int(sys.argv[1])), flush=True)
