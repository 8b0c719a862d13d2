"""How much error in a confounder undoes a result: by formula, and by adding that error."""

import dataclasses

import numpy
import pytest

from spiritlevel_lab.statistics import summary
from spiritlevel_lab.statistics.confounding import confounding, with_error
from spiritlevel_lab.statistics.few_values import Design
from spiritlevel_lab.statistics.judged import judge
from spiritlevel_lab.statistics.partial import partial_correlation


def confounded(random, num, error):
    """Measure and target have nothing but z in common; z is seen with an error."""
    z = random.normal(size=num)
    x, y = z + 0.5 * random.normal(size=(2, num))
    return x, y, z, z + error * random.normal(size=num)


def given(x, y, z, kind="pearson"):
    found = partial_correlation(x, y, {"z": z}, kind=kind)
    return judge(found, {}, {}, Design.of(None, {}))


@pytest.mark.parametrize("error", [0.2, 0.5, 1.0])
def test_the_right_share_of_error_gives_the_correlation_without_it(error):
    """Of very many runs: what is seen with an error, corrected for it, is what is seen without."""
    x, y, z, seen = confounded(numpy.random.default_rng(0), 200_000, error)
    share = error**2 / (1 + error**2)
    with_noise = numpy.corrcoef([x, y, seen])
    true = partial_correlation(x, y, {"z": z}).value
    assert abs(true) < 0.01
    before, corrected = with_error(with_noise, [0.0, share])
    assert before == pytest.approx(partial_correlation(x, y, {"z": seen}).value)
    assert before > 0.05
    assert corrected == pytest.approx(true, abs=0.02)  # four times what chance makes of each


def test_two_confounders_at_once():
    random = numpy.random.default_rng(1)
    z = random.normal(size=(2, 200_000))
    x, y = z.sum(axis=0) + 0.5 * random.normal(size=(2, 200_000))
    seen = z + 0.5 * random.normal(size=z.shape)
    assert with_error(numpy.corrcoef([x, y, *seen]), [0.2]) == pytest.approx(0.0, abs=0.02)


def test_more_error_than_there_can_be():
    seen = numpy.array([[1.0, 0.9, 0.9], [0.9, 1.0, 0.9], [0.9, 0.9, 1.0]])
    assert numpy.isnan(with_error(seen, [0.0, 0.5])).tolist() == [False, True]


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_a_result_of_the_error_alone_is_undone_by_it(kind):
    """Of 60 populations in which nothing but the confounder's error makes a result."""
    random = numpy.random.default_rng(2)
    clear = undone = 0
    for _ in range(60):
        x, y, _, seen = confounded(random, 100, 0.5)
        result = given(x, y, seen, kind)
        found = confounding(x, y, {"z": seen}, result, errors={"z": [0.5] * 100}, kind=kind)
        assert found.errors["z"] == pytest.approx(0.25 / seen.var(ddof=1))
        clear += result.is_clear
        undone += found.is_undone
    assert clear >= 50
    # 5 % stay; of ranks more, since a partial correlation of ranks is not 0 where that of values is
    assert undone >= clear - (6 if kind == "pearson" else 12)
    assert "their recorded error is enough" in found.sentence or not found.is_undone


def test_a_result_of_its_own_is_not():
    random = numpy.random.default_rng(3)
    x, _, _, seen = confounded(random, 200, 0.1)
    y = x + 0.3 * random.normal(size=200)
    found = confounding(x, y, {"z": seen}, given(x, y, seen), errors={"z": [0.1] * 200})
    assert not found.is_undone
    assert found.undone_at > 0.1
    exact = confounding(x, y, {"z": seen}, given(x, y, seen))
    assert exact.errors == {"z": None}
    assert "z (error not recorded)" in exact.sentence
    assert "of their variance between runs were error" in exact.sentence
    none = confounding(x, y, {"z": seen}, dataclasses.replace(given(x, y, seen), low=-0.1))
    assert none.undone_at is None
    assert none.sentence == ""


def test_the_verdict_takes_recorded_errors_into_account():
    x, y, _, seen = confounded(numpy.random.default_rng(5), 200, 0.5)
    rows = [
        {
            "settings": {"seed": i},
            "measures": {"m": x[i]},
            "target": y[i],
            "confounders": {"z": seen[i]},
        }
        for i in range(200)
    ]
    told = summary(rows)
    assert told["m"].verdict == "rises with the target, also given the confounders"
    assert f"m, {told['m'].confounding.sentence}" in told.notes()
    known = summary([row | {"errors": {"z": 0.5}} for row in rows])
    assert known["m"].verdict == (
        "rises with the target; given the confounders: unclear, as measured with their errors"
    )
    assert f"m, {known['m'].confounding.sentence}" in known.notes()
