"""How long the rest of a study will take, from what its runs say about themselves.

The store knows of every run when a worker took it, when it ended, how long it worked and who had
it. How many run at once is not in it: a worker of `vmap` takes a whole group, Ray's driver takes
more than it has processors. So that is judged by what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ENDED = ("done", "failed")
Run = Mapping[str, Any]  # a row of the table of runs


def seconds_left(runs: Sequence[Run], *, now: float | None = None) -> float | None:
    """Until no run waits, if the rest goes as this session went; None: nothing has ended yet.

    `now` is for who knows that the work goes on at this moment; others go by its last sign.
    """
    running = [run for run in runs if run["status"] == "running"]
    pending = sum(run["status"] == "pending" for run in runs)
    ended = [run for run in runs if run["status"] in ENDED and run["finished"] is not None]
    if not ended:
        return None
    if not running and not pending:
        return 0.0
    begun, now_ended = _session(running, ended)
    mean = _mean_seconds(now_ended) or _mean_seconds(ended)
    each = _seconds_a_run(running, now_ended, begun=begun, mean=mean)
    if each is None:
        return None
    last_ones = _seconds_to_keep(running, now_ended)
    if last_ones is None:  # the last runs end together: no sooner than one of them takes
        left = max((pending + len(running)) * each, mean or 0.0)
    else:
        left = pending * each + min(last_ones, len(running) * each)
    # What was worked since then is not left. Not by the clock alone: the workers may be dead.
    since = max((run["finished"] for run in now_ended), default=begun)
    signs = [run["heartbeat"] for run in running if run["heartbeat"] is not None]
    if running and now is not None:
        signs.append(now)
    return max(pending * each, left - max(0.0, max(signs, default=since) - since))


def _session(running: Sequence[Run], ended: Sequence[Run]) -> tuple[float, list[Run]]:
    """Since when those now at work are, and which runs have ended since then, whoever had them.

    A worker's name is its own, so an earlier session does not count, nor the days between. Where
    nobody is at work it is the session of the run that ended last.
    """
    workers = {run["worker"] for run in running}
    if not workers:
        workers = {max(ended, key=lambda run: float(run["finished"]))["worker"]}
    theirs = [run["started"] for run in (*running, *ended) if run["worker"] in workers]
    latest = max(float(run["finished"]) for run in ended)
    begun = min((float(start) for start in theirs if start is not None), default=latest)
    return begun, [run for run in ended if run["finished"] > begun]


def _seconds_a_run(
    running: Sequence[Run], ended: Sequence[Run], *, begun: float, mean: float | None
) -> float | None:
    """Wall clock for each run that ends, all workers together: the smaller of two bounds.

    Time over runs is too long while many are on their way and few have ended. Work over workers is
    too long where one worker, Ray's driver, has several at once.
    """
    found = []
    if ended and (took := max(run["finished"] for run in ended) - begun) > 0:
        found.append(took / len(ended))
    if mean is not None:
        workers = {run["worker"] for run in running or ended}
        found.append(mean / max(1, len(workers)))
    return min(found, default=None)


def _mean_seconds(runs: Sequence[Run]) -> float | None:
    seconds = [run["seconds"] for run in runs if run["status"] == "done"]
    known = [float(each) for each in seconds if each is not None]
    return sum(known) / len(known) if known else None


def _seconds_to_keep(running: Sequence[Run], ended: Sequence[Run]) -> float | None:
    """For networks that were trained together and now end one by one; None: there are none.

    Their training is behind all of them, so what is left of each is the time between two ends.
    """
    by_worker: dict[Any, list[Run]] = {}
    for run in running:
        by_worker.setdefault(run["worker"], []).append(run)
    left = []
    for worker, held in by_worker.items():
        taken = max((run["started"] for run in held if run["started"] is not None), default=0.0)
        since = [r for r in ended if r["worker"] == worker and r["finished"] > taken]
        ends = sorted(run["finished"] for run in since)
        # More work than time: they ran side by side, and the next end says nothing of the others.
        if len(ends) < 2 or sum(run["seconds"] or 0.0 for run in since) > ends[-1] - taken:
            return None
        left.append(len(held) * (ends[-1] - ends[0]) / (len(ends) - 1))
    return max(left, default=None)
