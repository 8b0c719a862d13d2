"""Runs that share a network's shape, trained at once, in one process or several.

What cannot train so (running statistics, dropout, changes of single batches, SAM) is trained alone;
a study of nothing else is refused.
"""

from __future__ import annotations

import functools
import math
import time
from collections import defaultdict
from collections.abc import Sequence

import torch

from ...errors import SpiritlevelError
from ..runs.measuring import complete
from ..runs.networks import build_model
from ..runs.results import describe
from ..runs.running import OnEpoch, repeatable, with_seconds
from ..runs.stacked import Member, group_key, members_that_fit, refusal, refusal_of, train_together
from ..storage.store import Claim, Store
from .heartbeat import beating
from .local import given_back, work_on
from .processes import run_processes
from .progress import ProgressReporter, Watch, epochs_of
from .workers import new_worker

MOST = 256  # members at once: what is claimed together is lost together
DEADLY = 2  # deaths of workers after which a run trains alone, before all that were with it fail


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
    if workers == 1:
        work_together(store, device=device, watch=watch)
    else:
        worker = functools.partial(work_together, workers=workers)
        run_processes(store, worker, workers=workers, device=device, watch=watch)


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
    groups = _waiting(store)
    sharing = max(1, workers // max(1, len(groups)))
    while (first := store.claim(worker)) is not None:
        claims = [first]
        group = groups.get(group_key(first.settings), set())
        if first.settings.id not in group:  # workers died of it, perhaps: it takes nobody along
            group = set()
        with given_back(store, claims), beating(store, lambda c=claims: list(c)):  # type: ignore[misc]
            share = max(2, math.ceil(len(group) / sharing))
            room = min(_room(first, device, workers), share) if group else 1
            while len(claims) < room:
                more = store.claim(worker, among=group)
                if more is None:
                    break
                claims.append(more)
            for claim, member, seconds in _trained(claims, device, tell):
                if member is None:
                    work_on(store, claim, device=device, on_epoch=tell)
                else:
                    _keep(store, claim, member, seconds)
                reporter.now()


def _waiting(store: Store) -> dict[str, set[str]]:
    """Ids of runs that may train together and are not done, by what they share."""
    deadly = {id_ for id_, count in store.deaths().items() if count >= DEADLY}
    open_ = {row["id"] for row in store.rows("runs") if row["status"] != "done"} - deadly
    groups: dict[str, set[str]] = defaultdict(set)
    for settings in store.settings():
        if settings.id in open_:
            groups[group_key(settings)].add(settings.id)
    return groups


def _room(claim: Claim, device: str, workers: int) -> int:
    """How many may train with this one; 1 if it has to train alone, or cannot be built at all."""
    try:
        model = build_model(claim.settings, "cpu")
        if refusal(claim.settings, model):
            return 1
        fitting = members_that_fit(claim.settings, model, torch.device(device), workers=workers)
        return min(MOST, fitting)
    except Exception:  # trained alone, it fails with its own words
        return 1


def _trained(
    claims: Sequence[Claim], device: str, on_epoch: OnEpoch
) -> list[tuple[Claim, Member | None, float]]:
    """Members with their share of the time; None for a run that has to train alone."""
    alone: list[tuple[Claim, Member | None, float]] = [(claim, None, 0.0) for claim in claims]
    if len(claims) == 1:
        return alone
    on_epoch(0, max(epochs_of(claim.settings) for claim in claims))
    start = time.perf_counter()
    try:
        with repeatable(claims[0].settings.training.threads):
            settings = [claim.settings for claim in claims]
            members = train_together(settings, device, on_epoch=on_epoch)
    except Exception:  # an operation that vmap does not know, or a run's own error in its own words
        return alone
    share = (time.perf_counter() - start) / len(claims)
    return [(claim, member, share) for claim, member in zip(claims, members, strict=True)]


def _keep(store: Store, claim: Claim, member: Member, seconds: float) -> None:
    start = time.perf_counter()
    try:
        with repeatable(member.settings.training.threads):
            result = complete(member, together=True, keep=True)
    except Exception as error:
        store.fail(claim, describe(error))
    else:
        store.finish(claim, with_seconds(result, seconds + time.perf_counter() - start))
