"""Random networks against dense truths: 18 in every run of the tests, thousands in a night.

A failing case is printed as a short program. `python -m fuzz.run` in tests/ does the same without
pytest.
"""

import pytest

from fuzz.generate import random_case
from fuzz.losses import LOSSES
from fuzz.productions import PRODUCTIONS, READOUTS, STEMS
from fuzz.program import as_program
from fuzz.run import attack
from fuzz.shrink import shrink

CASES = range(216)  # some of them plain torch cannot run
PART = 18
PARTS = [CASES[start : start + PART] for start in range(0, len(CASES), PART)]


RARE = (228, 230, 244, 368, 396, 407, 419)  # losses and stems that the others do not have


def small_programs(failed):
    """Of the first two failures; making a case small takes as long as judging many."""
    programs = []
    for number, case, _ in failed[:2]:
        small, verdict = shrink(case)
        programs.append(f"case {number}, made small:\n{as_program(small, verdict.failures)}")
    return "\n\n".join(programs)


def check(numbers):
    tally, failed = attack(numbers)
    print(tally.text())
    numbers_of_failed = [number for number, _, _ in failed]
    assert not failed, f"cases {numbers_of_failed} fail\n\n{small_programs(failed)}"
    assert tally.complaints() == []
    return tally


@pytest.mark.sampled(6)
@pytest.mark.parametrize("numbers", PARTS, ids=lambda part: f"{part.start}-{part.stop - 1}")
def test_numbers_are_true(numbers):
    assert check(numbers).cases >= 16


def test_rare_parts():
    _, failed = attack(RARE)
    assert not failed, small_programs(failed)


@pytest.mark.nightly
def test_numbers_are_true_at_night(night):
    check(night)


def test_the_cases_of_every_run_show_everything():
    cases = [random_case(number) for number in (*CASES, *RARE)]
    assert {kind for case in cases for kind in case.kinds()} == set(PRODUCTIONS)
    assert {case.loss for case in cases} == set(LOSSES)
    assert {case.stem for case in cases} == set(STEMS)
    assert {case.readout for case in cases} == set(READOUTS)
