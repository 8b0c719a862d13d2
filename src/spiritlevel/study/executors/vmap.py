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
from ..runs.attempts import OnEpoch
from ..runs.measuring import complete
from ..runs.results import failure
from ..runs.running import repeatable, with_seconds
from ..runs.stacked import Trained, refusal_of, train_together
from ..runs.training_snapshots import UNFINISHED, SnapshotFile
from ..storage.claims import new_worker
from ..storage.store import Claim, Store
from .groups import Group, groups_of
from .local import beating, given_back, work_on
from .processes import run_processes
from .progress import ProgressReporter, Watch, epochs_of

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


def snapshots_of(store: Store, group: Group) -> SnapshotFile:
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
    worker = new_worker()
    reporter = ProgressReporter(store, watch)
    tell = on_epoch or reporter.epoch
    groups = groups_of(store, workers=workers, device=device)
    at_hand: dict[str, Trained] = {}  # by the first of its runs: the group that was trained last
    while claims := _next(store, worker, groups, tell, first=at_hand, waits=workers > 1):
        group = groups.get(claims[0].id, (claims[0].settings,))
        with given_back(store, claims), beating(store, lambda c=claims: list(c)):  # type: ignore[misc]
            if len(group) > 1 and group[0].id not in at_hand:
                at_hand.clear()  # its memory is needed
                at_hand |= _trained(store, claims, group, device, tell)
            trained = at_hand.get(group[0].id)
            if trained is not None and snapshots_of(store, group).is_trained:
                for claim in claims[1:]:  # for whoever has time
                    store.release(claim)
                del claims[1:]
            for claim in claims:
                if trained is None:
                    work_on(store, claim, device=device, on_epoch=tell)
                else:
                    _measure(store, claim, trained)
                reporter.now()
        _remove_if_done(store, group)


def _next(
    store: Store,
    worker: str,
    groups: Mapping[str, Group],
    tell: OnEpoch,
    *,
    first: Mapping[str, Trained],
    waits: bool,
) -> list[Claim]:
    """The runs to work on; those of a group in `first` come first.

    With `waits`, if no run is left, wait for the groups that other processes train.
    """
    together = functools.partial(_taken_together, store, groups)
    mine = {member.settings.id for trained in first.values() for member in trained.members}
    while True:
        claims = store.claim_group(worker, together, among=mine) if mine else []
        claims = claims or store.claim_group(worker, together)
        if claims or not waits or not _is_training(store, groups):
            return claims
        tell(0, 0)
        time.sleep(WAIT)


def _taken_together(store: Store, groups: Mapping[str, Group], id_: str) -> set[str]:
    """The runs that are taken with this one: its group, unless that is trained."""
    group = groups.get(id_, ())
    if not group or snapshots_of(store, group).is_trained:
        return {id_}
    return {run.id for run in group}


def _is_training(store: Store, groups: Mapping[str, Group]) -> bool:
    """Whether a process trains a group, of which there will be networks to measure."""
    running = [id_ for id_, state in store.states().items() if state == "running"]
    return any(len(_taken_together(store, groups, id_)) > 1 for id_ in running)


def _trained(
    store: Store, claims: list[Claim], group: Group, device: str, on_epoch: OnEpoch
) -> dict[str, Trained]:
    """Train a group, or find it trained; nothing if it cannot be.

    The whole group trains, finished members too: without them the others would be rounded
    differently than in a session that was not interrupted.
    """
    on_epoch(0, max(epochs_of(settings) for settings in group))
    snapshots = snapshots_of(store, group)
    try:
        with repeatable(group[0].training.threads):
            trained = train_together(group, device, on_epoch=on_epoch, snapshots=snapshots)
    except Exception as error:  # an operation that vmap does not know, or a run's own error
        if is_out_of_memory(error):
            for claim in claims:
                store.fail(claim, f"{failure(error)}. {len(group)} networks together. {ADVICE}")
            claims.clear()
        return {}
    return {group[0].id: trained}


def _measure(store: Store, claim: Claim, trained: Trained) -> None:
    """Store one of the networks, with its share of the time that the group took."""
    start = time.perf_counter()
    [member] = [each for each in trained.members if each.settings.id == claim.id]
    try:
        with repeatable(member.settings.training.threads):
            result = complete(member, together=True, keep=True)
    except Exception as error:
        store.fail(claim, failure(error))
    else:
        seconds = trained.seconds / len(trained.members) + time.perf_counter() - start
        store.finish(claim, with_seconds(result, seconds))


def _remove_if_done(store: Store, group: Group) -> None:
    """The file of a group goes with its last run; one that failed may be measured again."""
    states = store.states()
    if all(states[run.id] == "done" for run in group):
        snapshots_of(store, group).remove()
