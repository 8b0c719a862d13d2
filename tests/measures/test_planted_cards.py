"""The contract suite itself on measures with false cards: it fails for those, and only there."""

import os
import pathlib
import re

import pytest

import fresh

TESTS = pathlib.Path(__file__).parents[1]
SUITE = TESTS / "measures" / "test_contract.py"
# What holds of files and not of claims: a planted measure is in no family's file, and has no form.
ABOUT_FILES = ("name_is_family", "closed_form")


@pytest.fixture(scope="module")
def outcomes():
    """Of the suite's checks on each planted measure: which failed, and how many there were."""
    chosen = " and ".join(["planted", *(f"not {name}" for name in ABOUT_FILES)])
    options = ["-p", "measures.planted_measures", "-p", "no:cacheprovider", "--tb=no", "-rA", "-q"]
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(fresh.SRC)])}
    result = fresh.run(
        "-m", "pytest", "--all-samples", *options, SUITE, "-k", chosen, cwd=TESTS.parent, env=paths
    )
    assert result.returncode == 1, result.stdout + result.stderr  # ran, and some checks failed
    found = {"PASSED": {}, "FAILED": {}}
    for outcome, check, case in re.findall(
        r"^(PASSED|FAILED) \S+::(\w+)\[(\S+)\]", result.stdout, flags=re.M
    ):
        planted = re.search(r"\w+\.planted_\w+", case)[0]
        found[outcome].setdefault(planted, set()).add((check, case.replace(planted, "").strip("-")))
    return found


UNCHANGED = "test_value_is_unchanged_by_exactly_the_symmetries_on_the_card"
NETWORKS = ("relu_mlp", "relu_convnet")
EXPECTED = {
    # it moves, and the card says that it does not
    "norms.planted_unmoved": {(UNCHANGED, f"{name}-layer_rescale") for name in NETWORKS},
    # it does not move, and the card says that it does
    "softmax.planted_moved": {(UNCHANGED, f"{name}-unit_permute") for name in NETWORKS},
    # a formula, and the card says that chance has a part in it
    "softmax.planted_draws": {
        ("test_results_carry_the_name_and_the_settings", ""),
        ("test_the_same_seed_gives_the_same_value", ""),
    },
    # probabilities of a loss that has none
    "softmax.planted_anywhere": {
        ("test_finite_and_the_same_in_both_precisions", "linear_regression"),
        ("test_planned_cost_is_the_counted_cost", "linear_regression"),
    },
}


def test_the_suite_fails_for_exactly_the_false_cards(outcomes):
    assert set(outcomes["FAILED"]) == set(EXPECTED)
    assert "softmax.planted_honest" in outcomes["PASSED"]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_false_claim_fails_the_check_that_executes_it(outcomes, name):
    assert outcomes["FAILED"][name] == EXPECTED[name]
    others = outcomes["PASSED"][name] | outcomes["FAILED"][name]
    honest = outcomes["PASSED"]["softmax.planted_honest"]
    assert others == honest  # the same checks were run
