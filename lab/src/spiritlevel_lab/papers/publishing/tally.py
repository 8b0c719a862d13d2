"""How many experiments fared how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...claims.scale import WORDS
from .render import ScaleResult


def tally(results: Sequence[ScaleResult]) -> str:
    """One sentence; of each experiment one result."""
    counts = Counter(result.verdict for result in results)
    said = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"Of {len(results)} that were run: {said or 'none yet'}."
