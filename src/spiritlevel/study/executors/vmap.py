"""Runs that share a network's shape, trained at once, in one process or several.

One process trains a group. Then all processes measure its networks, one after another. What cannot
train so (running statistics, dropout, changes of single batches, SAM) is trained alone; a study of
nothing else is refused.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

from ...errors import SpiritlevelError, is_out_of_memory
from ..run_results import failure
from ..runs.attempts import OnEpoch
from ..runs.machine import repeatable
from ..runs.measuring import complete
from ..runs.running import with_seconds
from ..runs.stacked import TrainedGroup, refusal_of, train_together
from ..runs.training_snapshots import UNFINISHED, SnapshotFile
from ..storage.store import Claim, Store
from .groups import TrainingGroup, groups_of
from .local import Session
from .processes import run_processes
from .progress import Watch, epochs_of

ADVICE = "Networks that train together die together: --executor local trains each of them alone."
WAIT = 0.5  # seconds between two looks at whether another process has trained its group


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
