"""What a comparison shows, in sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from ...measures.confounders import MEASURED_ALONG
from .ranking import Disagreement, Pair, PairFindings

RANK = "# is the rank, 1 the flattest; in brackets the ranks that the errors leave open."
NO_RANKS = "None of these measures flatness, so there are no ranks."
NO_DISAGREEMENT = "No two measures order any two networks in opposite ways beyond errors."
Opposed = dict[tuple[str, str], tuple[set[str], set[str]]]
FEWEST, MOST = 3, 7  # digits of numbers side by side
ROUND_OFF = 1e-6  # relative: a smaller difference is none


def ranking(
    measures: Sequence[str],
    ranked: Sequence[str],
    directions: Mapping[str, str | None],
    of_these_samples: Sequence[str],
) -> list[str]:
    """How the ranks are read, and which measures have none.

    Args:
        measures: all that were taken.
        ranked: those of flatness.
        directions: by measure, which values are flatter; a measure without a card is missing.
        of_these_samples: the ranked ones whose sampling error is not known.
    """
    lines = [RANK] if ranked else [NO_RANKS]
    if larger := [m for m in ranked if directions[m] == "larger is flatter"]:
        lines.append(f"Larger values are flatter for {listing(larger)}.")
    if of_these_samples:
        unknown = f"The sampling error is not known for {listing(of_these_samples)}"
        lines.append(f"{unknown}: these ranks are about these samples alone.")
    unranked = [m for m in measures if m not in ranked]
    if of_other_kind := [m for m in unranked if m in directions]:
        lines.append(f"Not flatness measures, so without a rank: {listing(of_other_kind)}.")
    if without_card := [m for m in unranked if m not in directions]:
        lines.append(f"Unknown to this version, so without a rank: {listing(without_card)}.")
    return lines


def opposed(disagreements: Iterable[Disagreement]) -> Opposed:
    """By pair of networks: by which measures the first is the flatter, and by which the sharper."""
    grouped: Opposed = {}
    for d in disagreements:
        flatter_by, sharper_by = grouped.setdefault((d.flatter, d.sharper), (set(), set()))
        flatter_by.add(d.first)
        sharper_by.add(d.second)
    return grouped


def of_pair(found: PairFindings) -> str:
    """The outcome for two networks in a sentence, and what else differs between them."""
    a, b = found.first, found.second
    total = len(found.flatter_by) + len(found.sharper_by) + len(found.open)
    measures = "1 measure" if total == 1 else f"{total} measures"
    if not found.flatter_by and not found.sharper_by:
        said = f"no difference beyond errors by {measures}"
    elif not found.flatter_by:
        said = f"{b!r} is flatter by {len(found.sharper_by)} of {measures}"
    else:
        said = f"{a!r} is flatter by {len(found.flatter_by)} of {measures}"
        if found.sharper_by:
            said += f", {b!r} by {listing(found.sharper_by)}"
    also = f" They also differ in {others(found)}." if found.confounders else ""
    return f"{a!r} and {b!r}: {said}.{also}"


def details_of_pair(found: PairFindings) -> list[str]:
    """The outcome by measure, how it looked at first, and what explains the difference."""
    a, b = found.first, found.second
    outcome = _flatter(a, found.flatter_by) + _flatter(b, found.sharper_by)
    if found.open:
        outcome.append(f"undecided by {listing(found.open)}")
    lines = [f"{a!r} and {b!r}: {'; '.join(outcome)}."]
    if found.confounders:
        lines.append(f"They also differ in {others(found)}, which may be the cause.")
    if at_first := _flatter(a, found.before[0]) + _flatter(b, found.before[1]):
        lines.append(f"As they are: {'; '.join(at_first)}.")
    reasons: dict[str, list[str]] = {}
    for each in found.explained:
        reasons.setdefault(f"{each.by}: {each.text}", []).append(each.measure)
    lines += [f"Explained by {why}: {listing(names)}." for why, names in reasons.items()]
    if found.remaining:
        shares = ", ".join(f"{d.left:.0%} of {d.measure}" for d in found.remaining)
        lines.append(f"What equal confidence leaves of the differences: {shares}.")
    return lines


def _flatter(name: str, measures: Sequence[str]) -> list[str]:
    return [f"{name!r} is flatter by {listing(measures)}"] if measures else []


def others(found: PairFindings) -> str:
    """The confounders in which two networks differ, with both values."""
    words = []
    for pair in found.confounders:
        one, other = apart([pair.in_flatter, pair.in_sharper])
        words.append(f"{MEASURED_ALONG[pair.confounder]} ({one} against {other})")
    return ", ".join(words)


def in_words(pair: Pair, flatter: str) -> str:
    """A confounder with its direction and both values."""
    label = MEASURED_ALONG[pair.confounder]
    one, other = apart([pair.in_flatter, pair.in_sharper])
    return f"{label} ({pair.direction} in {flatter!r}: {one} against {other})"


def unchecked(reasons: Mapping[str, str]) -> list[str]:
    """Which measures were not checked for scale, one sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for measure, reason in reasons.items():
        by_reason.setdefault(reason, []).append(measure)
    return [
        "Not checked for scale, although rescaling layers changes the value: "
        f"{listing(names)}; {reason}."
        for reason, names in by_reason.items()
    ]


def listing(names: Iterable[str]) -> str:
    """The names in alphabetical order, with commas."""
    return ", ".join(sorted(names))


def apart(values: Sequence[float], *, fewest: int = FEWEST) -> list[str]:
    """The values as text; two that differ look different, if seven digits can show it.

    >>> apart([13.04, 13.01])
    ['13.04', '13.01']
    >>> apart([0.2, 0.4]), apart([1.0, 1.0 + 1e-8])
    (['0.2', '0.4'], ['1', '1'])
    """
    ordered = sorted(values)
    size = max(map(abs, ordered), default=0.0)
    distinct = 1 + sum(b - a > ROUND_OFF * size for a, b in itertools.pairwise(ordered))
    for digits in range(fewest, MOST + 1):
        shown = [f"{value:.{digits}g}" for value in values]
        if len(set(shown)) >= distinct:
            break
    return shown
