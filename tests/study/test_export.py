"""Exported tables against what sqlite3 itself reads from the file: every cell of every table."""

import csv
import dataclasses
import json
import math
import pathlib
import sqlite3

import pytest

import spiritlevel as sl
from spiritlevel.study import Store
from spiritlevel.study.export import export
from spiritlevel.study.run_results import EpochMeasurementRow, EpochRow, MeasurementRow, RunResult
from spiritlevel.study.storage.claims import new_worker
from study.tiny_study import tiny

KINDS = ["csv", "parquet"]
HOSTILE = 'no, "luck"\n=1+1 <b>é'
RESULT = RunResult(
    outcome="epochs",
    epochs=(EpochRow(1, 0.5, 0.25, math.inf, 0.75), EpochRow(2, 0.125, 1.0, 0.1, 0.75)),
    measurements=(
        MeasurementRow("head.trace", "", 1 / 3, None, 0.1, True, "ok", HOSTILE),
        MeasurementRow("head.trace", "fc", 1e-300, 0.5, None, False, "ok", ""),
        MeasurementRow("norms.weight", "", math.nan, None, None, True, "ok", ""),
    ),
    checkpoint=b"weights",
    num_train=60,
    num_test=500,
    seconds=2.0,
    machine='{"torch": "2", "threads": 1}',
    epoch_measurements=(
        EpochMeasurementRow("head.trace", "", 2.5, None, 0.1, True, "ok", "", epoch=1),
    ),
)
OTHER = dataclasses.replace(
    RESULT,
    epochs=(EpochRow(1, math.nan, 0.0, 0.3, 0.5, 0.7, 0.25),),
    machine='{"torch": "3", "gpu": {"name": "é", "count": 2}}',
)


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "study", tiny()) as opened:
        opened.finish(opened.claim(new_worker()), RESULT)
        opened.fail(opened.claim(new_worker()), HOSTILE)
        opened.finish(opened.claim(new_worker()), OTHER)
        opened.claim(new_worker())  # still running
        yield opened


def asked(store, query: str, *values) -> list[dict]:
    connection = sqlite3.connect(store.folder / "runs.sqlite")
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


def truth(store) -> dict[str, list[dict]]:
    """The tables, written out by hand from the rows of the database."""
    runs = []
    for run in asked(store, "SELECT * FROM runs ORDER BY position"):
        axes = json.loads(run.pop("axes"))
        row = {"run": run.pop("id")} | run | axes
        last = asked(
            store, "SELECT * FROM epochs WHERE run = ? ORDER BY epoch DESC LIMIT 1", row["run"]
        )
        for epoch in last:
            row |= epoch
            # `float`, as the store keeps nan as a text.
            row["gap"] = float(epoch["test_loss"]) - float(epoch["train_loss"])
            row["error_gap"] = epoch["train_accuracy"] - epoch["test_accuracy"]
            row["test_error"] = 1 - epoch["test_accuracy"]
        whole = "SELECT measure, value FROM measurements WHERE run = ? AND layer = ''"
        row |= {found["measure"]: found["value"] for found in asked(store, whole, row["run"])}
        runs.append(row)
    machines = [
        {"machine": row["id"]} | json.loads(row["description"])
        for row in asked(store, "SELECT * FROM machines ORDER BY id")
    ]
    in_order = "SELECT t.* FROM {} t JOIN runs ON t.run = runs.id ORDER BY position, {}"
    return {
        "runs": runs,
        "machines": machines,
        "epochs": asked(store, in_order.format("epochs", "epoch")),
        "measurements": asked(store, in_order.format("measurements", "measure, layer")),
        "epoch_measurements": asked(
            store, in_order.format("epoch_measurements", "epoch, measure, layer")
        ),
    }


def read(path) -> list[dict]:
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same(cell, value, kind: str) -> bool:
    if value is None:
        return cell == ("" if kind == "csv" else None)
    if isinstance(value, dict | list):
        return json.loads(cell) == value
    if value == "nan" or value != value:
        return math.isnan(float(cell))
    if isinstance(value, str) or kind == "parquet":
        return cell == value
    return float(cell) == value


@pytest.mark.parametrize("kind", KINDS)
def test_every_cell_is_what_the_database_holds(store, tmp_path, kind):
    paths = export(store, tmp_path / "out", kind=kind)
    expected = truth(store)
    assert [pathlib.Path(path).name for path in paths] == [f"{name}.{kind}" for name in expected]
    assert [len(rows) for rows in expected.values()] == [12, 2, 3, 6, 2]
    for name, rows in expected.items():
        found = read(tmp_path / "out" / f"{name}.{kind}")
        columns = {key for row in rows for key in row}
        assert set(found[0]) >= columns - {"validation_loss", "validation_accuracy"}
        assert set(found[0]) <= columns
        assert len(found) == len(rows)
        for ours, theirs in zip(found, rows, strict=True):
            wrong = {k: v for k, v in ours.items() if not same(v, theirs.get(k), kind)}
            assert wrong == {}, (name, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_settings_of_a_run_say_all_of_it(store, tmp_path, kind):
    export(store, tmp_path, kind=kind)
    for row, run in zip(read(tmp_path / f"runs.{kind}"), tiny().runs(), strict=True):
        settings = json.loads(row["settings"])
        assert settings["model"] == {"name": "mlp", "hidden": 4}
        assert settings["data"] == {"name": "digits", "samples": 60}
        assert settings["training"]["lr"] == run.axes["lr"]
        assert settings["training"]["momentum"] == 0.9
        assert settings["seed"] == run.seed


def test_parquet_keeps_types_that_csv_cannot(store, tmp_path):
    pytest.importorskip("pyarrow")
    export(store, tmp_path, kind="parquet")
    rows = read(tmp_path / "runs.parquet")
    done, other, failed = (rows[i] for i in (0, 1, 6))  # six seeds of a rate follow one another
    assert (done["num_train"], failed["num_train"]) == (60, None)
    assert type(done["num_train"]) is int
    assert math.isnan(other["train_loss"])  # not the same as the missing one of a failed run
    assert failed["train_loss"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_axes_of_several_types(tmp_path, kind):
    axes = {"interventions.label_noise": [0, 0.5], "interventions.input_noise": [False, 0.5]}
    with Store.create(tmp_path / "study", tiny(grid=axes, seeds=1)) as store:
        export(store, tmp_path, kind=kind)
    rows = read(tmp_path / f"runs.{kind}")
    assert [float(row["interventions.label_noise"]) for row in rows] == [0, 0, 0.5, 0.5]
    assert [row["interventions.input_noise"] for row in rows] == ["False", "0.5"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_empty_tables_still_name_their_columns(tmp_path, kind):
    with Store.create(tmp_path / "study", tiny()) as store:
        export(store, tmp_path, kind=kind)
    for name, first in {"machines": ["machine"], "epochs": ["run", "epoch", "train_loss"]}.items():
        path = tmp_path / f"{name}.{kind}"
        if kind == "csv":
            [heading] = path.read_text().splitlines()
            columns = heading.split(",")
        else:
            parquet = pytest.importorskip("pyarrow.parquet")
            columns = parquet.read_table(path).column_names
        assert columns[: len(first)] == first


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_store_gives_the_same_bytes(store, tmp_path, kind):
    contents = []
    for folder in ("one", "two"):
        paths = export(store, tmp_path / folder, kind=kind)
        contents.append([pathlib.Path(path).read_bytes() for path in paths])
    assert contents[0] == contents[1]


def test_another_format_is_refused(store, tmp_path):
    with pytest.raises(sl.SpiritlevelError, match=r"must be one of csv, parquet\. Got 'xlsx'"):
        export(store, tmp_path, kind="xlsx")
