"""Stores of studies that were never trained: rows written directly, from numbers with a seed."""

import json
import random

import numpy as np

from spiritlevel.measures import names as catalogue
from spiritlevel.pages.report.page import chart_of, intervals_apart
from spiritlevel.records.content import Chart, Figure, Page, Table
from spiritlevel_lab import Store, Study
from spiritlevel_lab.population.storage import checksums

MACHINE = {"host": "here", "device": "a chip", "torch": "2.0", "python": "3.11", "threads": 1}


def measure_names(count: int) -> list[str]:
    """Of the catalogue, those with `relative.kappa` and the bound first."""
    first = ["relative.kappa", "bound.generalization", "softmax.gini"]
    return [*first, *(name for name in catalogue() if name not in first)][:count]


def planted(
    folder,
    *,
    grid=None,
    seeds: int = 3,
    names=("relative.kappa", "norms.weight", "softmax.gini"),
    epochs: int = 4,
    layers=("fc1", "fc2", "head"),
    failed: int = 0,
    pending: int = 0,
    **fields,
) -> Store:
    """A store in which `names[0]` rises with the gap and the others are noise.

    The last `pending` runs wait; the `failed` ones before them have an error.
    """
    study = Study.from_dict(
        {
            "name": "planted",
            "grid": grid or {"optimizer": ["sgd", "adam"], "lr": [0.1, 0.01]},
            "seeds": seeds,
            "measures": ["relative.kappa"],
            **fields,
        }
    )
    store = Store.create(folder, study)
    noise = random.Random(0)
    ids = [row["id"] for row in store.rows("runs")]
    ended = len(ids) - pending
    runs, rows, numbers = [], [], []
    for i, id_ in enumerate(ids[: ended - failed]):
        gap = 0.1 + noise.random()
        runs.append((1.0 + i % 7, "epochs", id_))
        for epoch in range(1, epochs + 1):
            train = 2.0 / epoch + 0.01 * noise.random()
            test = train + gap * epoch / epochs
            rows.append((id_, epoch, train, 1 - train / 4, test, 1 - test / 4))
        for k, name in enumerate(names):
            value = gap + 0.2 * noise.random() if k == 0 else noise.lognormvariate(0, 1)
            numbers.append((id_, name, "", value))
            numbers += [(id_, name, layer, value * (j + 1)) for j, layer in enumerate(layers)]
    with store._writing():
        write = store._connection.executemany
        write("INSERT INTO machines VALUES (?, ?)", [(1, json.dumps(MACHINE))])
        write(
            "UPDATE runs SET status = 'done', machine = 1, num_train = 60, num_test = 500, "
            "seconds = ?, outcome = ? WHERE id = ?",
            runs,
        )
        write(
            "UPDATE runs SET status = 'failed', error = ? WHERE id = ?",
            [("the <b>loss</b> & more", id_) for id_ in ids[ended - failed : ended]],
        )
        write("INSERT INTO epochs VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)", rows)
        write("INSERT INTO measurements VALUES (?, ?, ?, ?, NULL, NULL, 1, 'ok', '')", numbers)
        checksums.seal_all(store._connection)
    return store


def big(folder) -> Store:
    """500 runs, 30 measures, 40 epochs, 8 layers."""
    grid = {
        "optimizer": ["sgd", "adam"],
        "lr": [0.1, 0.03, 0.01, 0.003, 0.001],
        "batch_size": [8, 16, 32, 64, 128],
    }
    layers = [f"layer{i}" for i in range(8)]
    return planted(folder, grid=grid, seeds=10, names=measure_names(30), epochs=40, layers=layers)


def unfinished(folder) -> Store:
    """21 finished runs, one that failed and two that wait, with the bound among the measures."""
    return planted(
        folder,
        grid={"optimizer": ["sgd", "adam"], "lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]},
        seeds=2,
        names=("relative.kappa", "bound.generalization", "softmax.gini", "norms.weight"),
        failed=1,
        pending=2,
    )


def parts(page: Page) -> dict:
    """Tables and charts by id, as a browser gets them; the tables of charts too."""
    found = {}
    for section in page.sections:
        for part in section.parts:
            if isinstance(part, Figure):
                part = chart_of(part)
            if isinstance(part, Table):
                found[part.id] = intervals_apart(part)
            if isinstance(part, Chart):
                found[part.id] = part
                found[part.table.id] = part.table
    return found


def records(table: Table) -> list[dict]:
    titles = [column.title for column in table.headings]
    assert len(set(titles)) == len(titles)
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def column(rows, name) -> np.ndarray:
    return np.array([row[name] for row in rows])
