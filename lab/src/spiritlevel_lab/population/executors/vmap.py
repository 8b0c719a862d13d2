"""Runs that share a network's shape, trained at once, in one process or several.

One process trains a group. Then all processes measure its networks, one after another. What cannot
train so (running statistics, dropout, changes of single batches, SAM) is trained alone; a study of
nothing else is refused.

Which runs train together is decided once, and kept in the store: networks in one stack are rounded
differently than in another. So a run that is continued after its worker died must find the same
companions, also those that are finished already.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Mapping, Sequence

import torch

from spiritlevel.ground.errors import SpiritlevelError, is_out_of_memory

from ..run_results import failure
from ..runs.machine import repeatable
from ..runs.networks import build_model
from ..runs.running import complete, with_seconds
from ..runs.stacked import (
    TrainedGroup,
    group_key,
    members_that_fit,
    refusal,
    refusal_of,
    train_together,
)
from ..runs.training_snapshots import UNFINISHED, OnEpoch, SnapshotFile
from ..settings.run import RunSettings
from ..storage.store import Claim, Store
from .local import Session
from .processes import run_processes, workers_per_gpu
from .progress import Watch, epochs_of

ADVICE = "Networks that train together die together: --executor local trains each of them alone."
WAIT = 0.5  # seconds between two looks at whether another process has trained its group
KEY = "groups"  # of the entry in the store
MOST = 256  # members at once: what is claimed together is lost together
TrainingGroup = tuple[RunSettings, ...]


def run_together(
    store: Store, *, workers: int = 1, device: str = "cpu", watch: Watch | None = None
) -> None:
    """Work until no run waits, in this process or several. Ctrl-C gives the runs at hand back."""
    reasons = [refusal_of(settings) for settings in store.settings()]
    if all(reasons):
        raise SpiritlevelError(
            f"The executor 'vmap' trains networks together, and none of the study's {len(reasons)} "
            f"runs can: {reasons[0]}. Use the executor 'local', with several workers."
        )
    # Before the workers, which find the groups there. A file of trained networks that cannot be
    # read goes: each worker would take one of them and train all.
    groups = groups_of(store, workers=workers, device=device).values()
    for group in {group[0].id: group for group in groups}.values():
        file = snapshots_of(store, group)
        if file.is_trained and file.load() is None:
            file.remove()
    if workers == 1:
        work_together(store, device=device, watch=watch)
    else:
        worker = functools.partial(work_together, workers=workers)
        run_processes(
            store, worker, workers=workers, device=device, watch=watch, advice=f" {ADVICE}"
        )


def snapshots_of(store: Store, group: TrainingGroup) -> SnapshotFile:
    """Where a group is kept until all of it is done.

    The last snapshot stays until all networks are measured: every worker takes them from there.
    """
    return SnapshotFile(store.folder / UNFINISHED, group[0].id, [run.id for run in group])


def work_together(
    store: Store,
    *,
    workers: int = 1,
    device: str = "cpu",
    watch: Watch | None = None,
    on_epoch: OnEpoch | None = None,
) -> None:
    """What one of the processes does; with more of them than groups, a group is shared."""
    session = Session(store, device=device, watch=watch, on_epoch=on_epoch)
    groups = groups_of(store, workers=workers, device=device)
    work = _GroupWork(session, groups, waits=workers > 1)
    while claims := work.taken():
        with session.holding(claims):
            group = work.carry_out(claims)
        states = store.states()
        # The file of a group goes with its last run; one that failed may be measured again.
        if all(states[run.id] == "done" for run in group):
            snapshots_of(store, group).remove()


class _GroupWork:
    """Groups that are trained, and networks that are measured, of this process and of others.

    Args:
        session: of this process.
        groups: of each run, by its id.
        waits: whether, if no run is left, it waits for the groups that others train.
    """

    def __init__(
        self, session: Session, groups: Mapping[str, TrainingGroup], *, waits: bool
    ) -> None:
        self._session, self._store = session, session.store
        self._groups, self._waits = groups, waits
        self._trained: TrainedGroup | None = None  # the group that was trained last

    def taken(self) -> list[Claim]:
        """The runs to work on; those of the group that was trained last come first."""
        worker = self._session.worker
        mine = {each.settings.id for each in self._trained.members} if self._trained else set()
        while True:
            claims = []
            if mine:
                claims = self._store.claim_group(worker, self._taken_together, among=mine)
            claims = claims or self._store.claim_group(worker, self._taken_together)
            if claims or not self._waits or not self._is_training():
                return claims
            self._session.tell(0, 0)
            time.sleep(WAIT)

    def carry_out(self, claims: list[Claim]) -> TrainingGroup:
        """Train the group of these runs if it is not trained, then measure; the group."""
        group = self._groups.get(claims[0].id, (claims[0].settings,))
        if len(group) > 1 and not self._is_at_hand(group):
            self._trained = None  # its memory is needed
            self._train(group, claims)
        trained = self._trained if self._is_at_hand(group) else None
        if trained is not None and snapshots_of(self._store, group).is_trained:
            for claim in claims[1:]:  # for whoever has time
                self._store.release(claim)
            del claims[1:]
        for claim in claims:
            if trained is None:
                self._session.execute(claim)
            else:
                self._measure(claim, trained)
            self._session.reporter.now()
        return group

    def _is_at_hand(self, group: TrainingGroup) -> bool:
        return self._trained is not None and self._trained.members[0].settings.id == group[0].id

    def _taken_together(self, id_: str) -> set[str]:
        """The runs that are taken with this one: its group, unless that is trained."""
        group = self._groups.get(id_, ())
        if not group or snapshots_of(self._store, group).is_trained:
            return {id_}
        return {run.id for run in group}

    def _is_training(self) -> bool:
        """Whether a process trains a group, of which there will be networks to measure."""
        running = [id_ for id_, state in self._store.states().items() if state == "running"]
        return any(len(self._taken_together(id_)) > 1 for id_ in running)

    def _train(self, group: TrainingGroup, claims: list[Claim]) -> None:
        """Train a group, or find it trained; what cannot train together is left to train alone.

        The whole group trains, finished members too: without them the others would be rounded
        differently than in a session that was not interrupted.
        """
        tell = self._session.tell
        tell(0, max(epochs_of(settings) for settings in group))
        snapshots = snapshots_of(self._store, group)
        try:
            with repeatable(group[0].training.threads):
                self._trained = train_together(
                    group, self._session.device, on_epoch=tell, snapshots=snapshots
                )
        except Exception as error:  # an operation that vmap does not know, or a run's own error
            if is_out_of_memory(error):
                text = f"{failure(error)}. {len(group)} networks together. {ADVICE}"
                for claim in claims:
                    self._store.fail(claim, text)
                claims.clear()

    def _measure(self, claim: Claim, trained: TrainedGroup) -> None:
        """Store one of the networks, with its share of the time that the group took."""
        start = time.perf_counter()
        [member] = [each for each in trained.members if each.settings.id == claim.id]
        try:
            with repeatable(member.settings.training.threads):
                result = complete(member, together=True, keep=True)
        except Exception as error:
            self._store.fail(claim, failure(error))
        else:
            seconds = trained.seconds / len(trained.members) + time.perf_counter() - start
            self._store.finish(claim, with_seconds(result, seconds))


# -- groups --------------------------------------------------------------------------------------


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
