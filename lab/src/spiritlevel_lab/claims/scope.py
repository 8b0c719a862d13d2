"""Which part of a network a number is of: columns of studies that measure the head alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

HEAD = "head"
# The same number whichever layers are asked for.
WHICHEVER = (
    *("head.*", "softmax.*", "bound.*", "sensitivity.*", "norms.margin*"),
    *("activity.death", "activity.frequency"),
)

# Of the head too, where whole networks are measured: what paper 002's code compares, and its norm.
ALSO_OF_THE_HEAD = ("norms.weight", "relative.kappa_std")


def of_the_head(measure: str) -> str:
    """How the column of a measure that was taken of the head alone is called, as of one layer.

    >>> of_the_head("norms.weight"), of_the_head("softmax.gini")
    ('norms.weight[head]', 'softmax.gini')
    """
    same = any(fnmatch.fnmatchcase(measure, pattern) for pattern in WHICHEVER)
    return measure if same else f"{measure}[{HEAD}]"


def scoped(measures: Iterable[str], options: Mapping[str, Any]) -> dict[str, str]:
    """The columns of measures, by name, in a study with these `measure_options`."""
    if options.get("layers") == HEAD:
        return {name: of_the_head(name) for name in measures}
    chosen = dict.fromkeys(measures)
    both = [*chosen, *(of_the_head(name) for name in ALSO_OF_THE_HEAD if name in chosen)]
    return {name: name for name in both}


def both_scopes(measures: Iterable[str]) -> list[str]:
    """The columns that a measure may stand in: of the whole network, and of its head alone."""
    return list(dict.fromkeys(c for name in measures for c in (name, of_the_head(name))))
