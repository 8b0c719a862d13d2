"""What a comparison shows, in sentences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from ...measures.confounders import MEASURED_ALONG
from .ranking import PREFERRED, PairFindings, Pairs, Place, Ranking, listed
from .scale import ALONG, Scale

RANK = "# is the rank, 1 the flattest; in brackets the ranks that the errors leave open."
NO_RANKS = "None of these measures flatness, so there are no ranks."
DIFFERENT = 2.0  # a factor between losses beyond which some networks are trained further
SHOWN = 3  # pairs or measures in a sentence
SAID = {
    "unchanged": "comparable between these networks",
    "nearly": "nearly comparable between these networks",
    "untested": "not shown to be misleading, but not fully tested",
}
WRONG = {
    "changes": "Not used, since it changes although the function stays the same",
    "open": "Not used, since it was not found out whether the weights' scale changes it",
}
FEWEST, MOST = 3, 7  # digits of numbers side by side
ROUND_OFF = 1e-6  # relative: a smaller difference is none


def answer(ranking: Ranking, first: PairFindings) -> list[str]:
    """The order or that there is none, what confidence does to it, what other measures say.

    `first` is the pair of the two flattest networks.
    """
    how = "at equal confidence" if ranking.matched else "as the networks are"
    count, names = len(ranking.places), ranking.names
    every = count * (count - 1) // 2
    if len(ranking.tied) == every:
        one, other = apart(first.values[ranking.measure], fewest=4)
        values = f"both {one}" if one == other else f"{one} and {other}"
        both = f" ({values})" if count == 2 else ""
        lines = [
            f"{_listing(map(repr, names))} cannot be separated by {ranking.measure}, {how}: its "
            f"values agree within their errors{both}."
        ]
    else:
        lines = [f"From flat to sharp by {ranking.measure}, {how}: {listed(ranking.places)}."]
        if ranking.tied:
            lines[0] += f" It cannot separate {_pairs(ranking.tied)}."
        for circle in ranking.circles:
            lines.append(
                f"{_listing(map(repr, circle))} share a rank: compared two at a time, at the "
                "confidence of the less confident one, they go round in a circle."
            )
    if ranking.before is not None:
        lines.append(_without_matching(ranking.before, ranking.places))
    by_open: dict[str, list[str]] = {}
    for name in ranking.agreeing:
        pairs = ranking.open[name]
        by_open.setdefault("any of them" if len(pairs) == every else _pairs(pairs), []).append(name)
    for left, agreeing in by_open.items():
        s, it = ("s", "it") if len(agreeing) == 1 else ("", "they")
        if len(ranking.tied) < every:
            also = f" ({it} cannot separate {left})" if left else ""
            said = f"never contradict{s} this order significantly{also}"
        elif left == "any of them":
            said = "cannot separate them either"
        else:
            said = f"separate{s} some of them"
        lines.append(f"{_listing(agreeing)} {said}.")
    for name, pairs in ranking.opposing.items():
        lines.append(f"{name} contradicts it: {_pairs(pairs, 'is flatter than')}.")
    return lines


def _without_matching(before: Mapping[str, Place], places: Mapping[str, Place]) -> str:
    if listed(before) == listed(places):
        return "Without matching confidence, the answer is the same."
    said = f"Without matching confidence: {listed(before)}."
    if list(before) == list(places):
        return said
    return f"{said} The order differs only because confidence differs."


def cannot_rank(scales: Mapping[str, Scale]) -> str:
    """Why there is no order: each measure of flatness that was taken, and what is wrong with it."""
    advice = "" if ALONG in scales else f" Measure {ALONG} too."
    return (
        "These networks cannot be ranked by what was measured: the same function could get "
        f"different ranks. {'. '.join(_refused(scales))}.{advice}"
    )


def trust(ranking: Ranking, scales: Mapping[str, Scale], audited: str) -> str:
    """One line on the measure that decides, and on those that may not."""
    line = (
        f"Trust: {ranking.measure} is {SAID[ranking.scale.kind]}: {ranking.scale.text} ({audited})"
    )
    return f"{'. '.join([line, *_refused(scales)])}."


def _refused(scales: Mapping[str, Scale], most: int = SHOWN) -> list[str]:
    """The measures that may not rank networks, by what is wrong with them."""
    known = [name for name in PREFERRED if name in scales]
    refused = {name: scales[name] for name in [*known, *scales] if not scales[name].admits}
    lines = []
    for kind, why in WRONG.items():
        shown = [f"{name} ({s.text})" for name, s in refused.items() if s.kind == kind]
        if shown:
            more = [f"{len(shown) - most} more"] if len(shown) > most else []
            lines.append(f"{why}: {_listing([*shown[:most], *more])}")
    return lines


def stages(
    losses: Mapping[str, float], untrained: Mapping[str, float], ranked: Sequence[str]
) -> list[str]:
    """Which networks are hardly trained, and that losses differ.

    Args:
        losses: by network, where they are known of all.
        untrained: the hardly trained ones, with the loss of equal probabilities.
        ranked: the networks that are ranked.
    """
    lines = []
    for said, names in (
        ("hardly trained", [name for name in untrained if name in ranked]),
        ("left out", [name for name in untrained if name not in ranked]),
    ):
        if names:
            *each, chance = apart([*map(losses.__getitem__, names), max(untrained.values())])
            are, its = ("is", "its") if len(names) == 1 else ("are", "their")
            lines.append(
                f"{_listing(map(repr, names))} {are} {said}: {its} loss ({', '.join(each)}) is "
                f"closer to that of guessing ({chance}) than to 0, so {its} values do not describe "
                "a minimum."
            )
    by_loss = sorted((name for name in ranked if name in losses), key=losses.__getitem__)
    if by_loss and losses[by_loss[-1]] > DIFFERENT * losses[by_loss[0]]:
        low, high = by_loss[0], by_loss[-1]
        one, other = apart([losses[low], losses[high]])
        lines.append(
            f"The losses differ, from {one} ({low!r}) to {other} ({high!r}): flatness changes "
            "during training, so the order may be one of how far each network is trained."
        )
    return lines


def reading(
    measures: Sequence[str],
    directions: Mapping[str, str | None],
    scales: Mapping[str, Scale],
    of_these_samples: Sequence[str],
) -> list[str]:
    """How the ranks are read, and which measures have none.

    Args:
        measures: all that were taken.
        directions: by measure, which values are flatter; a measure without a card is missing.
        scales: of the measures of flatness, what symmetries do to them.
        of_these_samples: the ranked ones whose sampling error is not known.
    """
    lines = [RANK] if any(s.admits for s in scales.values()) else []
    if larger := [m for m in scales if directions[m] == "larger is flatter"]:
        lines.append(f"Larger values are flatter for {_names(larger)}.")
    if of_these_samples:
        unknown = f"The sampling error is not known for {_names(of_these_samples)}"
        lines.append(f"{unknown}: these ranks are about these samples alone.")
    lines += [f"{line}." for line in _refused(scales, most=len(scales))]
    unranked = [m for m in measures if m not in scales]
    if of_other_kind := [m for m in unranked if m in directions]:
        lines.append(f"Not flatness measures, so without a rank: {_names(of_other_kind)}.")
    if without_card := [m for m in unranked if m not in directions]:
        lines.append(f"Unknown to this version, so without a rank: {_names(without_card)}.")
    return lines


def of_pair(found: PairFindings, measure: str) -> str:
    """The outcome for two networks in a sentence, and what else differs between them."""
    a, b = repr(found.first), repr(found.second)
    one, other = apart(found.values[measure])
    if measure in found.open:
        said = f"{a} and {b} cannot be separated by {measure} ({one} and {other})"
    else:
        said = f"{a} is flatter than {b} by {measure} ({one} against {other})"
    against = [m for m in found.sharper_by if m != measure]
    with_it = [m for m in found.flatter_by if m != measure]
    parts = [f"{a} is flatter by {_listing(with_it)}"] if with_it and measure in found.open else []
    parts += [f"{b} is flatter by {_listing(against)}"] if against else []
    also = f" They also differ in {others(found)}." if found.confounders else ""
    return f"{'; '.join([said, *parts])}.{also}"


def details_of_pair(found: PairFindings) -> list[str]:
    """The outcome by measure, how it looked at first, and what explains the difference."""
    a, b = found.first, found.second
    outcome = _flatter(a, found.flatter_by) + _flatter(b, found.sharper_by)
    if found.open:
        outcome.append(f"not separated by {_names(found.open)}")
    lines = [f"{a!r} and {b!r}: {'; '.join(outcome)}."]
    if found.confounders:
        lines.append(f"They also differ in {others(found)}, which may be the cause.")
    if at_first := _flatter(a, found.before[0]) + _flatter(b, found.before[1]):
        lines.append(f"Without matching confidence: {'; '.join(at_first)}.")
    if found.by_confidence:
        lines.append(f"Only because confidence differs: {_names(found.by_confidence)}.")
    return lines


def _flatter(name: str, measures: Sequence[str]) -> list[str]:
    return [f"{name!r} is flatter by {_names(measures)}"] if measures else []


def others(found: PairFindings) -> str:
    """The confounders in which two networks differ, with both values."""
    words = []
    for pair in found.confounders:
        one, other = apart([pair.in_first, pair.in_second])
        words.append(f"{MEASURED_ALONG[pair.confounder]} ({one} against {other})")
    return ", ".join(words)


def _pairs(pairs: Pairs, linked: str = "and") -> str:
    shown = [f"{a!r} {linked} {b!r}" for a, b in pairs[:SHOWN]]
    more = len(pairs) - SHOWN
    return "; ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def _names(names: Iterable[str]) -> str:
    """The names in alphabetical order, with commas."""
    return ", ".join(sorted(names))


def _listing(names: Iterable[str]) -> str:
    """Names in a sentence.

    >>> _listing(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


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
