"""The runs of a store as one table: settings, ends of training, measures of the whole network."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from ..errors import SpiritlevelError, suggestion
from ..measures.confounders import HELD_FIXED
from .statistics import StudyStatistics, summary
from .storage.store import Store

TARGETS = {
    "gap": "test loss − training loss",
    "error_gap": "training accuracy − test accuracy",
    "test_loss": "test loss",
    "test_error": "1 − test accuracy",
}
# What a measure may merely repeat: how far training went, how certain and how large the network is.
CONFOUNDERS = HELD_FIXED
VALIDATION = ("validation_loss", "validation_accuracy")  # None where a study has no such data
BOOKKEEPING = ("seed", "attempt", "seconds", "machine")  # numbers, but none a measure could repeat
SHARES = ("error_gap", "test_error")  # means of a loss that lies between 0 and 1


def wide_rows(store: Store) -> list[dict[str, Any]]:
    """One row a run: id, status, axes, seed, the last epoch, the targets, every measure."""
    last: dict[str, dict[str, Any]] = {}
    for row in store.rows("epochs"):
        last[row.pop("run")] = row
    measures: dict[str, dict[str, float]] = {}
    for row in store.rows("measurements"):
        if row["layer"] == "":
            measures.setdefault(row["run"], {})[row["measure"]] = row["value"]
    found = []
    for run in store.rows("runs"):
        kept = ("outcome", "num_train", "num_test", "attempt", "seconds", "machine", "error")
        row = {"run": run["id"], "status": run["status"]}
        row |= json.loads(run["axes"]) | {"seed": run["seed"]}
        row |= {key: run[key] for key in kept}
        if run["id"] in last:
            end = last[run["id"]]
            row |= {k: v for k, v in end.items() if k not in VALIDATION or v is not None}
            row |= targets_of(end)
        found.append(row | measures.get(run["id"], {}))
    return found


def targets_of(epoch: dict[str, Any]) -> dict[str, float]:
    """What the measures are to say something about, from the last epoch."""
    return {
        "gap": epoch["test_loss"] - epoch["train_loss"],
        "error_gap": epoch["train_accuracy"] - epoch["test_accuracy"],
        "test_error": 1.0 - epoch["test_accuracy"],
    }


def statistics(
    store: Store,
    *,
    target: str = "gap",
    confounders: Sequence[str] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> StudyStatistics:
    """What each measure says about the target. Runs that failed are counted as left out.

    Args:
        store: of the study.
        target: "gap" (test − training loss), "error_gap", "test_loss" or "test_error"; or one of
            the study's own measures.
        confounders: measures, columns of the last epoch, or settings that are numbers. None: those
            of `CONFOUNDERS` that the study has and that differ between runs.
        confidence: of the intervals.
        resamples: of the bootstrap; 0 leaves it out.
    """
    names = list(dict.fromkeys(row["measure"] for row in store.rows("measurements")))
    _check_target(store, target, names)
    table = wide_rows(store)
    ended = [row for row in table if row["status"] in ("done", "failed")]
    if not any(row["status"] == "done" for row in ended):
        raise SpiritlevelError(
            f"The study in {str(store.folder)!r} has no finished run yet: there is nothing to "
            f"report. See `spiritlevel study status {store.folder}`."
        )
    axes = store.study.axes
    if confounders is None:
        held = [name for name in CONFOUNDERS if name != target and _varies(ended, name)]
    else:
        held = list(dict.fromkeys(confounders))
        _check_confounders(held, target, ended)
    tests = {row["num_test"] for row in ended if row["num_test"]}
    return summary(
        [
            {
                "settings": {key: row[key] for key in (*axes, "seed")},
                "measures": {n: row[n] for n in names if n in row and n != target},
                "target": row.get(target),
                "confounders": {name: row.get(name) for name in held},
            }
            for row in ended
        ],
        confidence=confidence,
        resamples=resamples,
        # Hoeffding's weights need a bounded loss and one number of test examples.
        num_test=tests.pop() if target in SHARES and len(tests) == 1 else None,
    )


def default_target(store: Store) -> str:
    """What measures are judged by unless one says else: the gap, where networks were trained.

    A task that trains none has numbers of its own; the first of them, by name.
    """
    names = sorted({row["measure"] for row in store.rows("measurements")})
    return "gap" if store.rows("epochs") or not names else names[0]


def _check_target(store: Store, target: str, names: Sequence[str]) -> None:
    if target not in TARGETS and target not in names:
        raise SpiritlevelError(
            f"The 'target' must be one of {', '.join(TARGETS)}, or a measure of the study. "
            f"Got {target!r}.{suggestion(target, [*TARGETS, *names])}"
        )
    if target in TARGETS and names and not store.rows("epochs"):
        raise SpiritlevelError(
            f"The study in {str(store.folder)!r} trained no networks, so there is no {target!r}. "
            f"Choose one of its own numbers as the target: {', '.join(names)}."
        )


def _check_confounders(names: Sequence[str], target: str, rows: Sequence[dict[str, Any]]) -> None:
    keys = dict.fromkeys(key for row in rows for key in row if key not in BOOKKEEPING)
    known = [key for key in keys if key != target and _is_numeric(rows, key)]
    for name in names:
        if name == target:
            raise SpiritlevelError(
                f"The 'confounders' must be other columns than the target. Got {name!r}, which is "
                "the target: nothing would be left of it. Leave it out."
            )
        if name not in known:
            raise SpiritlevelError(
                "Each of the 'confounders' must be a column of numbers of this study: "
                f"{', '.join(known)}. Got {name!r}.{suggestion(name, known)}"
            )


def _is_numeric(rows: Sequence[dict[str, Any]], name: str) -> bool:
    values = [row[name] for row in rows if row.get(name) is not None]
    return bool(values) and all(type(value) in (int, float) for value in values)


def _varies(rows: Sequence[dict[str, Any]], name: str) -> bool:
    values = (row.get(name) for row in rows)
    return len({v for v in values if v is not None and math.isfinite(v)}) > 1
