"""Which runs train together: decided once, and kept in the store.

Networks in one stack are rounded differently than in another. So a run that is continued after its
worker died must find the same companions, also those that are finished already. Otherwise its
numbers would depend on when the worker died.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from ...errors import SpiritlevelError, is_out_of_memory
from ..runs.networks import build_model
from ..runs.stacked import group_key, members_that_fit, refusal
from ..settings.run import RunSettings
from ..storage.store import Store
from .processes import workers_per_gpu

KEY = "groups"  # of the entry in the store
MOST = 256  # members at once: what is claimed together is lost together
TrainingGroup = tuple[RunSettings, ...]


def groups_of(store: Store, *, workers: int = 1, device: str = "cpu") -> dict[str, TrainingGroup]:
    """The group of each run that is not done, by its id; a run that trains alone is its own group.

    Groups of earlier sessions stay as they are, whatever was done of them. Runs without a group
    form new ones, according to the number of workers and the memory of the device.
    """
    runs = {run.id: run for run in store.settings()}
    not_done = {id_ for id_, state in store.states().items() if state != "done"}
    recorded = _by_run(store.entry(KEY) or [])
    without = [run for id_, run in runs.items() if id_ in not_done and id_ not in recorded]
    if without:
        new = _formed(without, workers, device)
        recorded = _by_run(store.update_entry(KEY, lambda before: _added(before or [], new)))
    return {id_: tuple(runs[each] for each in recorded[id_]) for id_ in not_done}


def _by_run(groups: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
    return {id_: group for group in groups for id_ in group}


def _added(before: list[list[str]], new: Sequence[Sequence[str]]) -> list[list[str]]:
    """The groups of another process that was faster stay; of the new ones, those that are left."""
    taken = set(itertools.chain.from_iterable(before))
    left = ([id_ for id_ in group if id_ not in taken] for group in new)
    return before + [group for group in left if group]


def _formed(runs: Sequence[RunSettings], workers: int, device: str) -> list[list[str]]:
    """Groups in the order of the grid, as large as memory allows, with a share for each worker."""
    alike: dict[str, list[RunSettings]] = {}
    for run in runs:
        alike.setdefault(group_key(run), []).append(run)
    sharing = max(1, workers // max(1, len(alike)))
    groups = []
    for members in alike.values():
        share = max(2, math.ceil(len(members) / sharing))
        size = min(_most_together(members[0], device, workers), share)
        ids = [member.id for member in members]
        groups += [ids[start : start + size] for start in range(0, len(ids), size)]
    return groups


def _most_together(run: RunSettings, device: str, workers: int) -> int:
    """How many may train with this one; 1 if it has to train alone, or cannot be built at all."""
    try:
        model = build_model(run, "cpu")
        if refusal(run, model):
            return 1
        sharing = workers_per_gpu(workers, device)
        fitting = members_that_fit(run, model, torch.device(device), sharing=sharing)
        return min(MOST, fitting)
    except Exception as error:
        if is_out_of_memory(error):
            raise SpiritlevelError(
                f"Memory ran out before training, for one network of run {run.id}: {error}. Make "
                "room, or use smaller networks or batches."
            ) from error
        return 1  # trained alone, it fails with its own words
