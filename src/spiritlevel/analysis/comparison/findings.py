"""What a comparison shows, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...measures.confounders import MEASURED_ALONG
from .differences import AlsoDiffering, Pair

if TYPE_CHECKING:
    from .comparison import Comparison

RANK = "# is the rank, 1 the flattest; in brackets the ranks that the errors leave open."


def findings(comparison: Comparison) -> list[str]:
    """All of them, in the order in which they are read."""
    lines = ranking(comparison)
    grouped = opposed(comparison)
    for (a, b), (one, other) in grouped.items():
        lines.append(
            f"Disagreement: {a!r} is flatter than {b!r} by {listing(one)}; sharper by "
            f"{listing(other)}."
        )
    if not grouped and comparison.ranked:
        lines.append("No two measures order any two networks in opposite ways beyond errors.")
    for e in comparison.explained():
        lines.append(
            f"{e.measure}: that {e.flatter!r} looks flatter than {e.sharper!r} is explained by "
            f"{e.by}: {e.text}."
        )
    lines += not_separable(comparison) + left_over(comparison) + unchecked(comparison)
    if comparison.unmatched:
        lines.append(f"Not compared at equal confidence: {comparison.unmatched}")
    return lines


def ranking(comparison: Comparison) -> list[str]:
    """How the ranks are read, and what has none."""
    lines = [RANK] if comparison.ranked else ["Nothing here measures flatness: no ranks."]
    known = comparison.directions
    if larger := [m for m in comparison.ranked if known[m] == "larger is flatter"]:
        lines.append(f"Flatter where larger: {listing(larger)}.")
    without = [m for m in comparison.measures if m not in comparison.ranked]
    if of_other_kind := [m for m in without if m in known]:
        lines.append(f"No measure of flatness, so without a rank: {listing(of_other_kind)}.")
    if unknown := [m for m in without if m not in known]:
        lines.append(f"No card in this version, so without a rank: {listing(unknown)}.")
    return lines


def opposed(comparison: Comparison) -> dict[tuple[str, str], tuple[set[str], set[str]]]:
    """By pair of networks: by which measures the first is the flatter, and by which the sharper."""
    grouped: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for d in comparison.disagreements():
        one, other = grouped.setdefault((d.flatter, d.sharper), (set(), set()))
        one.add(d.first)
        other.add(d.second)
    return grouped


def not_separable(comparison: Comparison) -> list[str]:
    """One sentence for all measures that stand beside the same confounders."""
    grouped: dict[tuple[str, str, tuple[Pair, ...]], list[str]] = {}
    for d in comparison.also_differing():
        if d.confounders:
            grouped.setdefault((d.flatter, d.sharper, d.confounders), []).append(d.measure)
    return [
        f"Not separable here: {flatter!r} is flatter than {sharper!r} by {listing(measures)}; "
        f"{'; '.join(in_words(pair, flatter) for pair in pairs)} also "
        f"{'differs' if len(pairs) == 1 else 'differ'}."
        for (flatter, sharper, pairs), measures in grouped.items()
    ]


def in_words(pair: Pair, flatter: str) -> str:
    """A confounder with its direction and both values."""
    label = MEASURED_ALONG[pair.confounder]
    return (
        f"{label} ({pair.direction} in {flatter!r}: {pair.in_flatter:.3g} "
        f"against {pair.in_sharper:.3g})"
    )


def left_over(comparison: Comparison) -> list[str]:
    """What the temperature of the logits leaves of differences whose order it does not change."""
    grouped: dict[tuple[str, str], list[AlsoDiffering]] = {}
    for d in comparison.also_differing():
        if d.left is not None:
            grouped.setdefault((d.flatter, d.sharper), []).append(d)
    return [
        f"Once equally confident, {flatter!r} is still flatter than {sharper!r}; the difference is "
        f"then, as a share of what it was: {', '.join(f'{d.measure} {d.left:.0%}' for d in found)}."
        for (flatter, sharper), found in grouped.items()
    ]


def unchecked(comparison: Comparison) -> list[str]:
    """What was not checked for scale, one sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for measure, reason in comparison.unchecked().items():
        by_reason.setdefault(reason, []).append(measure)
    return [
        "Not checked for scale, though rescaling of layers moves the value: "
        f"{listing(names)}; {reason}."
        for reason, names in by_reason.items()
    ]


def listing(names: Iterable[str]) -> str:
    """Sorted, with commas."""
    return ", ".join(sorted(names))
