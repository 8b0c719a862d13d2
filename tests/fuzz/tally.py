"""Counts over many cases: what was tried, refused and found, feature by feature."""

from __future__ import annotations

import collections
import dataclasses

from fuzz.case import Case
from fuzz.judge import Verdict

# Of all cases with a feature that are not odd in another way, at most this share may be refused, or
# have a value that a second look does not confirm.
# Zero would be too strict: random networks meet honest limits (two meanings of one shape).
MOST_REFUSED = 0.1
FEW = 10  # cases below which a share means nothing
LEAST_EXACT = 0.95  # of the numbers of networks that are piecewise linear in every layer


@dataclasses.dataclass
class Tally:
    """Adds up verdicts."""

    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sources: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    tried: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    exact: int = 0
    unconfirmed: int = 0
    inside: int = 0
    outside: int = 0
    straight: int = 0  # cases that must be exact
    straight_exact: int = 0

    def add(self, case: Case, verdict: Verdict) -> None:
        """Count one case."""
        self.outcomes[verdict.outcome] += 1
        if verdict.outcome == "not runnable":
            return
        self.sources[verdict.source or "none"] += 1
        self.exact += verdict.exact
        self.unconfirmed += verdict.unconfirmed
        self.inside += verdict.inside
        self.outside += verdict.outside
        if verdict.outcome == "refused":
            self.reasons[verdict.refusal.split(". ")[0][:60]] += 1
        if not case.odd():
            for feature in case.features():
                self.tried[feature] += 1
                self.refused[feature] += verdict.outcome == "refused" or verdict.unconfirmed > 0
        if must_be_exact(case) and verdict.outcome == "right":
            self.straight += 1
            self.straight_exact += verdict.exact > 0 and verdict.inside + verdict.outside == 0

    def merge(self, other: Tally) -> None:
        """Add the counts of another."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, mine + theirs)

    @property
    def cases(self) -> int:
        """Those that plain torch can run."""
        return sum(self.outcomes.values()) - self.outcomes["not runnable"]

    def complaints(self) -> list[str]:
        """What is wrong with the counts: too many refusals, too few exact values, bad coverage."""
        complaints = [
            f"{feature}: {self.refused[feature]} of {count} cases refused or unconfirmed"
            for feature, count in self.tried.items()
            if count >= FEW and self.refused[feature] > MOST_REFUSED * count
        ]
        if self.straight >= FEW and self.straight_exact < LEAST_EXACT * self.straight:
            complaints.append(
                f"{self.straight_exact} of {self.straight} piecewise linear networks are exact"
            )
        intervals = self.inside + self.outside
        # 95 % asked for; four standard deviations of intervals that are not independent below it
        if intervals >= 100 and self.outside > (0.05 + 4 * (0.0475 / intervals) ** 0.5) * intervals:
            complaints.append(f"{self.outside} of {intervals} intervals miss the truth")
        return complaints

    def text(self) -> str:
        """The counts, for people."""
        lines = [f"{self.cases} cases: {dict(self.outcomes)}"]
        lines += [f"truths from {dict(self.sources)}"]
        lines += [f"{self.exact} exact numbers, {self.unconfirmed} that a second look took back"]
        lines += [f"{self.inside} of {self.inside + self.outside} intervals hold the truth"]
        lines += [f"{self.straight_exact} of {self.straight} piecewise linear networks are exact"]
        lines += [
            f"refused {count} times: {reason}" for reason, count in self.reasons.most_common()
        ]
        return "\n".join(lines + self.complaints())


def must_be_exact(case: Case) -> bool:
    """Whether nothing about a case stands in the way of exact numbers."""
    return (
        case.straight()
        and not case.odd()
        and case.dtype == "float64"
        and case.method in ("auto", "exact")
        and not case.stem.startswith("bag_")  # torch has no forward derivative of bags
        and all(
            name.startswith(("curvature.trace", "curvature.ggn", "relative", "neuron.rho_sum"))
            and not name.endswith("squared")
            for name in case.measures
        )
    )
