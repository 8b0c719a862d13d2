"""The networks of paper 000's Table 3 by optimizer and learning rate."""

from __future__ import annotations

from collections.abc import Sequence

from ..judging.experiment import Row
from ..judging.scale import library_study

STUDY, HEAD = "000-table-3", "head.kappa"
SGD, ADAMW = "SGD", "AdamW"
OPTIMIZERS = {"sgd": SGD, "adamw": ADAMW}  # by how the names of the variants begin
ByRate = dict[tuple[str, float], list[Row]]  # optimizer and learning rate


def by_optimizer_and_rate(rows: Sequence[Row]) -> ByRate:
    """Runs by optimizer and rate; the study says which rate the name of a variant stands for."""
    presets = library_study(STUDY).presets
    scales = [library_study(STUDY, preset) for preset in ("", *presets)]
    rates = {name: variant["lr"] for scale in scales for name, variant in scale.variants.items()}
    groups: ByRate = {}
    for prefix, optimizer in OPTIMIZERS.items():
        runs = [
            row for row in rows if row["variant"] in rates and row["variant"].startswith(prefix)
        ]
        for row in sorted(runs, key=lambda row: rates[row["variant"]]):
            groups.setdefault((optimizer, rates[row["variant"]]), []).append(row)
    return groups
