"""A claim taken apart: what held, what did not, and what these runs cannot decide."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, Protocol

from .numbers import IntervalEstimate

Result = Literal["held", "not held", "undecided", "not refuted", "not judged"]
Agreement = Literal["yes", "partly", "no", "undecided", "untrained"]
NOT_YET = "no runs that show it yet"
POST_HOC = (  # for the end of a rule with parts that were judged only after the runs were made
    "What was added after the runs were made counts in one way alone: where it is not so, the "
    "claim is at most partly reproduced."
)
VERDICTS: dict[Agreement, str] = {
    "yes": "reproduced",
    "partly": "partly reproduced",
    "no": "not reproduced",
    "undecided": "undecided at this scale",
    "untrained": "not testable: networks not trained",
}


class WithInterval(Protocol):
    """A number with the ends of its interval: an IntervalEstimate, or a Correlation."""

    @property
    def value(self) -> float:
        """The number."""

    @property
    def low(self) -> float:
        """Lower end; nan where there is no interval."""

    @property
    def high(self) -> float:
        """Upper end."""

    @property
    def n(self) -> int:
        """Runs it rests on."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One part of a claim, in words, and what the runs say about it.

    "not refuted" is for a part that says nothing moves: an interval around 0 does not show that.
    "not judged" is for networks that are not trained.
    """

    part: str
    result: Result
    seen: str | IntervalEstimate
    paper: float | None = None  # its number for the same quantity
    clusters: int | None = None  # settings that the interval counts; None: it counts runs
    number: IntervalEstimate | None = None  # what was seen, if it is one number


def above(
    part: str, number: WithInterval, bound: float = 0.0, *, paper: float | None = None
) -> Finding:
    """Held where the whole interval is above the bound, not held where it is below.

    An interval on both sides is undecided, unless it excludes the number the paper has: then there
    is less to be seen here than there.

    >>> above("it rises", IntervalEstimate(0.3, -0.2, 0.8, 5)).result
    'undecided'
    >>> above("it rises", IntervalEstimate(0.1, -0.1, 0.3, 80), paper=0.76).result
    'not held'
    """
    seen: str | IntervalEstimate = estimate(number)
    if number.low > bound:
        result: Result = "held"
    elif number.high < bound:
        result = "not held"
    elif paper is not None and number.high < paper:
        result, seen = "not held", _without(number, paper)
    else:
        result = "undecided"
    return Finding(part, result, seen, paper, getattr(number, "clusters", None), estimate(number))


def below(
    part: str, number: WithInterval, bound: float = 0.0, *, paper: float | None = None
) -> Finding:
    """Held where the whole interval is below the bound; as `above` otherwise."""
    mirrored = IntervalEstimate(-number.value, -number.high, -number.low, number.n)
    judged = above(part, mirrored, -bound, paper=None if paper is None else -paper)
    seen: str | IntervalEstimate = estimate(number)
    if paper is not None and isinstance(judged.seen, str):
        seen = _without(number, paper)
    clusters = getattr(number, "clusters", None)
    return Finding(part, judged.result, seen, paper, clusters, estimate(number))


def _without(number: WithInterval, paper: float) -> str:
    return f"{estimate(number)}; the paper's {paper:g} lies outside"


def unmoved(part: str, number: WithInterval) -> Finding:
    """Not refuted where the interval is around 0, not held where it is not."""
    if math.isnan(number.low):
        result: Result = "undecided"
    else:
        result = "not refuted" if number.low <= 0 <= number.high else "not held"
    found = estimate(number)
    return Finding(part, result, found, None, getattr(number, "clusters", None), found)


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
    """Two trends are: held if their correlation is at least the bound and surely above 0.

    Not held if it is surely below the bound.
    """
    if number.low > 0 and number.value >= bound:
        result: Result = "held"
    else:
        result = "not held" if number.high < bound else "undecided"
    return Finding(part, result, number)


def unlike(part: str, number: IntervalEstimate, bound: float) -> Finding:
    """The opposite of `alike`: held where that is not held."""
    opposite: dict[Result, Result] = {"held": "not held", "not held": "held"}
    found = alike(part, number, bound)
    return dataclasses.replace(found, result=opposite.get(found.result, found.result))


def fact(part: str, true: bool | None, seen: str) -> Finding:
    """What can be seen in the runs without an interval; None where none of them can show it."""
    return Finding(part, "undecided" if true is None else "held" if true else "not held", seen)


def every(part: str, findings: Sequence[Finding]) -> Finding:
    """Several parts as one: held if all are, not held if one is not, undecided without any."""
    if not findings:
        return Finding(part, "undecided", NOT_YET)
    worst: tuple[Result, ...] = ("not held", "undecided", "not refuted", "held")
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
