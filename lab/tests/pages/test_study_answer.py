"""What a study's first sentences say, in each case there is."""

import dataclasses
import math

import pytest

from pages.planted_stores import planted
from spiritlevel_lab.pages import study_answer
from spiritlevel_lab.pages.study_answer import answer
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import NOT_JUDGED, statistics
from spiritlevel_lab.population.storage import checksums

GRID = {"lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]}
NAMES = ("relative.kappa", "norms.weight")


def made(folder, reached: int, **fields) -> Population:
    """24 networks, of which so many came to the criterion of their study."""
    with planted(folder, grid=GRID, seeds=4, names=NAMES, stop={"train_loss": 0.5}, **fields) as s:
        ids = [row["id"] for row in s.rows("runs")]
        with s._writing():
            s._connection.executemany(
                "UPDATE runs SET outcome = 'train_loss' WHERE id = ?", [(i,) for i in ids[:reached]]
            )
            checksums.seal_all(s._connection)
        return Population.of(s)


def test_networks_that_missed_the_criterion_are_counted_and_not_judged(tmp_path):
    population = made(tmp_path, 20)
    found = statistics(population)
    assert (len(population.done), len(population.judged), found.n) == (24, 20, 20)
    missed = "4 of 24 networks did not come to a training loss of at most 0.5"
    assert found.not_judged == f"{missed}: they are shown and not judged."
    assert answer(population, found, "gap").judged.endswith(found.not_judged)


def test_if_most_missed_it_there_is_no_verdict(tmp_path):
    population = made(tmp_path, 11)
    found = statistics(population)
    said = answer(population, found, "gap")
    assert {row.verdict for row in found.measures.values()} == {NOT_JUDGED}
    assert said.found == (
        "Nothing can be said about the measures: 13 of 24 networks did not come to a training loss "
        "of at most 0.5."
    )
    assert not any(each.is_clear for of in said.outcomes.values() for each in of.values())
    assert found.n == 24  # of all, since they are shown


def test_a_finding_is_said_as_a_sentence(tmp_path, monkeypatch):
    population = made(tmp_path, 24)
    found = statistics(population)
    said = answer(population, found, "gap")
    assert population.not_judged == ""
    assert said.best.name == "relative.kappa"
    assert said.found.startswith(
        "Networks with a larger relative.kappa have a larger gap of the losses"
    )
    assert said.why.startswith("relative.kappa and the gap of the losses: Spearman's ρ = +")
    assert "held fixed: ρ = " in said.why

    # with the gap nothing, with the error something
    beside = {
        "gap": {n: dataclasses.replace(a, is_clear=False) for n, a in said.outcomes["gap"].items()},
        "test_error": {
            n: dataclasses.replace(a, is_clear=n == "norms.weight")
            for n, a in said.outcomes["test_error"].items()
        },
    }
    monkeypatch.setattr(study_answer, "side_by_side", lambda *_: beside)
    assert answer(population, found, "gap").found == (
        "None of 2 measures is clearly associated with the gap of the losses; "
        "with the test error: norms.weight."
    )


@pytest.mark.parametrize(("p", "text"), [(math.nan, "p = nan"), (1.0, "p = 1"), (0.0, "p < 1e-12")])
def test_p_in_words(p, text):
    assert study_answer.chance(p) == text
