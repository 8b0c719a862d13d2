"""What a comparison shows, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...measures.confounders import MEASURED_ALONG
from .pairwise import AlsoDiffering, Disagreement, Explained, Pair

RANK = "# is the rank, 1 the flattest; in brackets the ranks that the errors leave open."
NO_DISAGREEMENT = "No two measures order any two networks in opposite ways beyond errors."
Opposed = dict[tuple[str, str], tuple[set[str], set[str]]]


def ranking(
    measures: Sequence[str], ranked: Sequence[str], directions: Mapping[str, str | None]
) -> list[str]:
    """How the ranks are read, and which measures have none.

    Args:
        measures: all that were taken.
        ranked: those of flatness.
        directions: by measure, which values are flatter; a measure without a card is missing.
    """
    lines = [RANK] if ranked else ["None of these measures flatness, so there are no ranks."]
    if larger := [m for m in ranked if directions[m] == "larger is flatter"]:
        lines.append(f"Larger values are flatter for {listing(larger)}.")
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


def disagreement(disagreements: Iterable[Disagreement]) -> list[str]:
    """One sentence for each pair of networks that measures order in opposite ways."""
    return [
        f"Disagreement: {a!r} is flatter than {b!r} by {listing(flatter_by)}, but sharper by "
        f"{listing(sharper_by)}."
        for (a, b), (flatter_by, sharper_by) in opposed(disagreements).items()
    ]


def explanation(explained: Iterable[Explained]) -> list[str]:
    """One sentence for each difference that scale or confidence accounts for."""
    return [
        f"{e.measure}: that {e.flatter!r} looks flatter than {e.sharper!r} is explained by "
        f"{e.by}: {e.text}."
        for e in explained
    ]


def other_differences(differing: Iterable[AlsoDiffering]) -> list[str]:
    """One sentence for all measures of a pair of networks that differ in the same confounders."""
    grouped: dict[tuple[str, str, tuple[Pair, ...]], list[str]] = {}
    for d in differing:
        if d.confounders:
            grouped.setdefault((d.flatter, d.sharper, d.confounders), []).append(d.measure)
    return [
        f"{flatter!r} is flatter than {sharper!r} by {listing(measures)}, but they also differ in "
        f"{'; '.join(in_words(pair, flatter) for pair in pairs)}, which may be the cause."
        for (flatter, sharper, pairs), measures in grouped.items()
    ]


def in_words(pair: Pair, flatter: str) -> str:
    """A confounder with its direction and both values."""
    label = MEASURED_ALONG[pair.confounder]
    return (
        f"{label} ({pair.direction} in {flatter!r}: {pair.in_flatter:.3g} "
        f"against {pair.in_sharper:.3g})"
    )


def remaining(differing: Iterable[AlsoDiffering]) -> list[str]:
    """How much of each difference is left once the networks are equally confident."""
    grouped: dict[tuple[str, str], list[AlsoDiffering]] = {}
    for d in differing:
        if d.left is not None:
            grouped.setdefault((d.flatter, d.sharper), []).append(d)
    return [
        f"At equal confidence, {flatter!r} is still flatter than {sharper!r}: "
        f"{_shares(differences)} remains."
        for (flatter, sharper), differences in grouped.items()
    ]


def _shares(differences: Sequence[AlsoDiffering]) -> str:
    return ", ".join(f"{d.left:.0%} of the {d.measure} difference" for d in differences)


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
