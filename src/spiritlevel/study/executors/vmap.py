"""Runs that share a network's shape, trained at once, in one process or several.

What cannot train so (running statistics, dropout, changes of single batches, SAM) is trained alone;
a study of nothing else is refused.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence

from ...errors import SpiritlevelError, is_out_of_memory
from ..runs.measuring import complete
from ..runs.results import failure
from ..runs.running import OnEpoch, repeatable, with_seconds
from ..runs.stacked import Member, refusal_of, train_together
from ..runs.stacked_snapshots import SnapshotFile
from ..storage.store import Claim, Store
from .groups import Group, groups_of
from .heartbeat import beating
from .local import given_back, work_on
from .processes import run_processes
from .progress import ProgressReporter, Watch, epochs_of
from .workers import new_worker

UNFINISHED = "unfinished"  # the folder of groups that were interrupted, in that of the store
ADVICE = "Networks that train together die together: --executor local trains each of them alone."


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
    groups_of(store, workers=workers, device=device)  # before the workers, which find them there
    if workers == 1:
        work_together(store, device=device, watch=watch)
    else:
        worker = functools.partial(work_together, workers=workers)
        run_processes(
            store, worker, workers=workers, device=device, watch=watch, advice=f" {ADVICE}"
        )


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
    ids = {id_: {run.id for run in group} for id_, group in groups.items()}
    while claims := store.claim_group(worker, lambda id_: ids.get(id_, {id_})):
        group = groups.get(claims[0].id, (claims[0].settings,))
        with given_back(store, claims), beating(store, lambda c=claims: list(c)):  # type: ignore[misc]
            if len(group) == 1:
                work_on(store, claims[0], device=device, on_epoch=tell)
                reporter.now()
                continue
            for claim, member, seconds in _trained(store, claims, group, device, tell):
                if member is None:
                    work_on(store, claim, device=device, on_epoch=tell)
                else:
                    _keep(store, claim, member, seconds)
                reporter.now()


def _trained(
    store: Store, claims: Sequence[Claim], group: Group, device: str, on_epoch: OnEpoch
) -> Iterator[tuple[Claim, Member | None, float]]:
    """Claimed members with their share of the time; None for a run that has to train alone.

    The whole group trains, finished members too: without them the others would be rounded
    differently than in a session that was not interrupted.
    """
    on_epoch(0, max(epochs_of(settings) for settings in group))
    start = time.perf_counter()
    members: dict[str, Member] = {}
    snapshots = SnapshotFile(store.folder / UNFINISHED / f"{group[0].id}.pt", [r.id for r in group])
    try:
        with repeatable(group[0].training.threads):
            trained = train_together(group, device, on_epoch=on_epoch, snapshots=snapshots)
        members = {member.settings.id: member for member in trained}
    except Exception as error:  # an operation that vmap does not know, or a run's own error
        if is_out_of_memory(error):
            for claim in claims:
                store.fail(claim, f"{failure(error)}. {len(group)} networks together. {ADVICE}")
            return
    share = (time.perf_counter() - start) / len(claims)
    for claim in claims:
        yield claim, members.pop(claim.id, None), share
    snapshots.remove()


def _keep(store: Store, claim: Claim, member: Member, seconds: float) -> None:
    start = time.perf_counter()
    try:
        with repeatable(member.settings.training.threads):
            result = complete(member, together=True, keep=True)
    except Exception as error:
        store.fail(claim, failure(error))
    else:
        store.finish(claim, with_seconds(result, seconds + time.perf_counter() - start))
