"""A claim taken apart: what held, what did not, and what these runs cannot decide.

An interval decides a part, or a count in the runs themselves: a part is held if the whole interval
is on the claim's side, and not held only if the whole interval excludes the claim. A difference of
two numbers without an interval decides nothing. A threshold of our own can make it harder to hold a
part, and refutes none. The number that the paper has refutes where it lies outside the interval, in
networks and data like the paper's alone: elsewhere it is another population's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from ..statistics import Correlation, Judged
from ..statistics.judged import RUNS
from .numbers import IntervalEstimate

Result = Literal["held", "not held", "undecided", "not refuted", "not judged"]
Agreement = Literal["yes", "partly", "no", "undecided", "untrained"]
WithInterval = IntervalEstimate | Correlation | Judged
NOT_YET = "no runs that show it yet"
POST_HOC = (  # for the end of a rule with parts that were judged only after the runs were made
    "What was added after the runs were made counts in one way alone: where it is not so, the "
    "claim is at most partly reproduced."
)
VERDICTS: dict[Agreement, str] = {
    "yes": "reproduced",
    "partly": "partly reproduced",
    "no": "not reproduced",
    "undecided": "undecided",
    "untrained": "not judged",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One part of a claim, in words, and what the runs say about it.

    "not refuted" is for a part that says nothing moves: an interval around 0 does not show that.
    "not judged" is for networks that are not trained, and for what has no interval.
    """

    part: str
    result: Result
    seen: str | IntervalEstimate
    paper: float | None = None  # its number for the same quantity
    clusters: int | None = None  # settings that the interval counts; None: it counts runs
    number: IntervalEstimate | None = None  # what was seen, if it is one number


def above(
    part: str,
    number: WithInterval,
    bound: float = 0.0,
    *,
    ours: float | None = None,
    paper: float | None = None,
    comparable: bool = True,
) -> Finding:
    """Held where the whole interval is above the bound, not held where it is below.

    An interval on both sides is undecided, unless it excludes the number the paper has: then there
    is less to be seen here than there.

    Args:
        part: of the claim, in words.
        number: with its interval.
        bound: what the claim itself says; 0 for a correlation that is positive.
        ours: a larger threshold of our own, which must be passed as well; it refutes nothing.
        paper: its number for the same quantity.
        comparable: whether these are networks and data like the paper's; its number refutes
            nothing elsewhere.

    >>> above("it rises", IntervalEstimate(0.3, -0.2, 0.8, 5)).result
    'undecided'
    >>> above("it rises", IntervalEstimate(0.1, -0.1, 0.3, 80), paper=0.76).result
    'not held'
    >>> above("it grows tenfold", IntervalEstimate(5.0, 4.0, 6.0, 9), 1.0, ours=10.0).result
    'undecided'
    """
    seen: str | IntervalEstimate = estimate(number)
    if number.low > max(bound, bound if ours is None else ours):
        result: Result = "held"
    elif number.high < bound:
        result = "not held"
    elif comparable and paper is not None and number.high < paper:
        result, seen = "not held", _without(number, paper)
    else:
        result = "undecided"
    return Finding(part, result, seen, paper, _counted(number), estimate(number))


def below(
    part: str,
    number: WithInterval,
    bound: float = 0.0,
    *,
    paper: float | None = None,
    comparable: bool = True,
) -> Finding:
    """Held where the whole interval is below the bound; as `above` otherwise."""
    mirrored = IntervalEstimate(-number.value, -number.high, -number.low, number.n)
    theirs = None if paper is None else -paper
    judged = above(part, mirrored, -bound, paper=theirs, comparable=comparable)
    seen: str | IntervalEstimate = estimate(number)
    if paper is not None and isinstance(judged.seen, str):
        seen = _without(number, paper)
    clusters = _counted(number)
    return Finding(part, judged.result, seen, paper, clusters, estimate(number))


def _counted(number: WithInterval) -> int | None:
    """How many settings, groups or seeds the interval counts; None where it counts runs."""
    if isinstance(number, Judged):
        return None if number.over == RUNS else number.count
    return getattr(number, "clusters", None)


def _without(number: WithInterval, paper: float) -> str:
    return f"{estimate(number)}; the paper's {paper:g} lies outside"


def unmoved(part: str, number: WithInterval) -> Finding:
    """Not refuted where the interval is around 0, not held where it is not."""
    if math.isnan(number.low):
        result: Result = "undecided"
    else:
        result = "not refuted" if number.low <= 0 <= number.high else "not held"
    found = estimate(number)
    return Finding(part, result, found, None, _counted(number), found)


def near(part: str, number: IntervalEstimate, bound: float) -> Finding:
    """Held where the whole interval is this near to 0, not refuted where the number alone is."""
    if math.isnan(number.low):
        result: Result = "undecided"
    elif max(abs(number.low), abs(number.high)) <= bound:
        result = "held"
    elif abs(number.value) <= bound:
        result = "not refuted"
    else:
        result = "not held" if number.low > bound or number.high < -bound else "undecided"
    return Finding(part, result, number)


def alike(part: str, number: IntervalEstimate, bound: float) -> Finding:
    """Two trends are: held if their correlation is surely above 0, and at least the bound.

    The bound is ours, so it refutes nothing: not held if the correlation is surely below 0.
    """
    found = above(part, number)
    short = found.result == "held" and number.value < bound
    return dataclasses.replace(found, result="undecided") if short else found


def unlike(part: str, number: IntervalEstimate, bound: float) -> Finding:
    """The opposite of `alike`: held where that is not held."""
    opposite: dict[Result, Result] = {"held": "not held", "not held": "held"}
    found = alike(part, number, bound)
    return dataclasses.replace(found, result=opposite.get(found.result, found.result))


def fact(part: str, true: bool | None, seen: str) -> Finding:
    """What is counted in the runs themselves; None where none of them can show it.

    It is for claims on every run or none ("the bound covers all gaps"), which one run refutes.
    """
    return Finding(part, "undecided" if true is None else "held" if true else "not held", seen)


def shown(part: str, seen: str) -> Finding:
    """What can be seen in the runs and has no interval, or only a threshold of our own."""
    return Finding(part, "not judged", seen)


def agreeing(part: str, findings: Sequence[Finding]) -> Finding:
    """One quantity looked at in several ways, such as by ranks: held or not held where all say so.

    >>> rise, fall = IntervalEstimate(2.0, 1.0, 3.0, 9), IntervalEstimate(-2.0, -5.0, 1.0, 9)
    >>> agreeing("it rises", [above("Pearson", rise), above("Spearman", fall)]).result
    'undecided'
    """
    results = {finding.result for finding in findings}
    result = results.pop() if len(results) == 1 else "undecided"
    said = "; ".join(f"{finding.part}: {finding.seen}" for finding in findings)
    return dataclasses.replace(findings[0], part=part, result=result, seen=said)


def every(part: str, findings: Sequence[Finding]) -> Finding:
    """Several parts as one: held if all are, not held if one is not, undecided without any."""
    if not findings:
        return Finding(part, "undecided", NOT_YET)
    worst: tuple[Result, ...] = ("not held", "undecided", "not judged", "not refuted", "held")
    result = next(r for r in worst if any(finding.result == r for finding in findings))
    said = "; ".join(f"{finding.part}: {finding.seen}" for finding in findings)
    return Finding(part, result, said)


def verdict(findings: Sequence[Finding]) -> Agreement:
    """The verdict on a whole claim, from its parts.

    >>> rise, fall = IntervalEstimate(2.0, 1.0, 3.0, 9), IntervalEstimate(-2.0, -5.0, 1.0, 9)
    >>> verdict([above("this rises", rise), below("that falls", fall)])
    'partly'
    >>> verdict([below("that falls", fall)])
    'undecided'
    """
    results = [finding.result for finding in findings]
    if "held" not in results:
        return missed(findings)
    return "yes" if set(results) <= {"held", "not refuted"} else "partly"


def with_added(agrees: Agreement, added: Sequence[Finding]) -> Agreement:
    """The verdict by the rule of before the runs; added parts can lower it and never raise it.

    >>> with_added("yes", [Finding("it falls", "undecided", "")])
    'partly'
    >>> with_added("undecided", [Finding("it falls", "held", "")])
    'undecided'
    """
    fit = all(finding.result in ("held", "not refuted") for finding in added)
    return agrees if agrees != "yes" or fit else "partly"


def missed(findings: Sequence[Finding]) -> Agreement:
    """The verdict on a claim of which no part was reproduced: "no" or "undecided"."""
    return "no" if any(finding.result == "not held" for finding in findings) else "undecided"


def estimate(number: WithInterval) -> IntervalEstimate:
    """The number as a table shows it."""
    return IntervalEstimate(number.value, number.low, number.high, number.n)
