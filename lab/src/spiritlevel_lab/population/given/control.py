"""A study of given networks: made, kept in a store, and gone on with."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError

from ..settings.definition import Study
from ..storage.database import DATABASE
from ..storage.store import Store
from .measuring import TASK


def study_of(
    networks: Sequence[Mapping[str, Any]],
    *,
    name: str,
    model: str | Mapping[str, Any],
    data: str | Mapping[str, Any],
    task: Mapping[str, Any],
    measures: str | Sequence[str] | None = None,
    measure_options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
) -> Study:
    """The study that measures these networks; `training` has the dtype and threads alone."""
    return Study(
        name=name,
        description=f"{len(networks)} networks that were trained elsewhere.",
        model=model,
        data=data,
        task={"name": TASK} | dict(task),
        measures=measures,
        measure_options=dict(measure_options or {}),
        training=dict(training or {}),
        networks=list(networks),
    )


def open_store(folder: str | os.PathLike[str], study: Study) -> Store:
    """The store of `study`, made, or opened to go on: networks and outcomes may be added to it."""
    if (pathlib.Path(folder) / DATABASE).is_file():
        with Store.open(folder) as store:
            _check_same(store, study)
    return Store.create(folder, study)


def _check_same(store: Store, study: Study) -> None:
    """Refuse a folder with networks that the study does not have, in words about networks."""
    before = store.study.given()
    if before is None:
        return  # a study that trains: what the store says of it is right
    now = set(study.given() or {})
    lost = [known["network"] for id_, known in before.items() if id_ not in now]
    if not lost:
        return
    have = {network["name"] for network in study.networks}
    changed = [name for name in lost if name in have]
    gone = [name for name in lost if name not in have]
    causes = []
    if changed:
        causes.append(
            f"{len(changed)} of its networks have other weights, another model, or are to be "
            f"measured in another way: {_listed(changed)}"
        )
    if gone:
        causes.append(f"{len(gone)} are no longer among those given: {_listed(gone)}")
    raise SpiritlevelError(
        f"The folder {str(store.folder)!r} holds measured networks, and this call does not go on "
        f"with them: {'; '.join(causes)}. Choose another --out, or give the same checkpoints, "
        "data and options as before."
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
