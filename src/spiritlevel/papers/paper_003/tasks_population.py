"""A network that another study has trained with the same settings, instead of training it again."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import SpiritlevelError
from ...study.checkpoints import load_checkpoint
from ...study.run_results import EpochRow, History
from ...study.runs.outcomes import DIVERGED
from ...study.settings.run import RunSettings
from ...study.storage.store import Store

# All that training depends on.
SAME = ("model", "data", "training", "interventions", "stop", "seed")


def take_over(folder: str, settings: RunSettings, model: nn.Module) -> History:
    """Put the weights of the same network in that study into `model`; how its training went."""
    wanted = _training_of(settings)
    with Store.open(folder) as store:
        runs = [row for row in store.rows("runs") if _is_same(row, wanted)]
        if len(runs) != 1:
            raise SpiritlevelError(
                f"The study in {folder!r} (task.population) must have one finished run with the "
                f"same model, data, training, stop and seed as {settings.axes}, seed "
                f"{settings.seed}. It has {len(runs)}. Run that study to its end first, with the "
                "same preset and the same --set."
            )
        [run] = runs
        epochs = [_epoch(row) for row in store.rows("epochs") if row["run"] == run["id"]]
        path = store.checkpoint(run["id"])
    if run["outcome"] != DIVERGED:
        load_checkpoint(model, path)
    return History(epochs=epochs, outcome=run["outcome"])


def _training_of(settings: RunSettings) -> dict[str, Any]:
    return {key: value for key, value in settings.to_dict().items() if key in SAME}


def _is_same(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    settings = RunSettings.from_json(row["settings"], row["axes"])
    return row["status"] == "done" and _training_of(settings) == wanted


def _epoch(row: dict[str, Any]) -> EpochRow:
    return EpochRow(**{key: value for key, value in row.items() if key != "run"})
