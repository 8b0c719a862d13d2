"""Study files and stores that were edited or damaged are read correctly, or refused."""

import contextlib
import json
import pathlib
import random
import shutil
import sqlite3

import pytest

from hostile.edits import damages, edits, planned_edits
from population.tiny_study import seal, tiny
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import Store, Study, resume, run
from spiritlevel_lab.population import control
from spiritlevel_lab.population.export import export
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics

EVERYTHING = {
    "name": "everything",
    "description": "A study that uses most keys.",
    "model": {"name": "mlp", "hidden": 4},
    "data": {"name": "digits", "samples": 60, "validation": 0.2},
    "training": {
        "epochs": 1,
        "batch_size": 20,
        "momentum": 0.9,
        "optimizer": "sgd",
        "schedule": "cosine",
        "penalty": {"name": "head_kappa", "weight": 0.1},
    },
    "grid": {"lr": [0.1, 0.01]},
    "seeds": [0, 1],
    "interventions": {"label_noise": 0.1},
    "stop": {"train_loss": 0.01},
    "measures": ["head.trace"],
    "measure_options": {"samples": 20, "rtol": 0.1, "options": {"rho": 0.1}},
    "presets": {"quick": {"seeds": 1}},
    "variants": {"a": {"weight_decay": 0.1}, "b": {"weight_decay": 0.0}},
    "measure_every": 1,
    "epoch_measures": ["head.trace"],
}
LAUGHS = "\n".join(  # ten times as many in every line
    f"{name}: &{name} [{', '.join([f'*{before}' if before else 'x'] * 10)}]"
    for before, name in zip(["", *"abcdefgh"], "abcdefghi", strict=True)
)
TEXTS = [
    "a: &a [*a]",
    "name: x\nmodel: &a {name: mlp, self: *a}",
    f"{LAUGHS}\nname: x\nmodel: {{name: mlp, hidden: *i}}",
    "name: x\nmodel: {name: mlp, hidden: 2020-01-01}",
    "name: x\nmodel: {name: mlp, hidden: !!binary aGVsbG8=}",
    "name: x\nmodel: {name: mlp, hidden: .inf}",
    "name: x\nmodel: {name: mlp, 3: 4}",
    "name: x\nmodel: !!set {a, b}",
    "!!python/object/apply:os.system ['touch marked']",
    "name: x\nmodel: !!python/name:os.system",
    "name: x\nname: y",
    "name: x\nmodel: {name: mlp, hidden: 4, hidden: 8}",
    "? [a, b]\n: c",
    "a: b: c",
    "\tname: x",
    "name: x\nseeds: 1000000000000",
    "name: x\nseeds: 100000\ngrid: {lr: [1, 2, 3], epochs: [1, 2], batch_size: [1, 2]}",
    "name: x\nseeds: .nan",
    "---\nname: a\n---\nname: b",
    *("", "null", "[]", "3", "name:", "name: [x]"),
]


def outcome(action) -> str:
    """ "done" or "refused"; anything but one of our errors fails the test."""
    try:
        action()
    except SpiritlevelError as error:
        return f"refused: {error}"
    return "done"


def use(fields: object) -> None:
    study = Study.from_dict(fields)
    assert len({settings.id for settings in study.runs()}) == len(study.runs())
    assert Study.from_dict(study.to_dict()) == study
    for preset in study.presets:
        study.with_preset(preset)


def test_some_edits_of_a_definition():
    every = list(planned_edits(EVERYTHING))
    chosen = random.Random(1).sample(every, 100)
    outcomes = [outcome(lambda make=make: use(make())) for _, make in chosen]
    assert 10 < sum(each.startswith("refused") for each in outcomes) < 95  # meta: both happen


@pytest.mark.nightly
def test_all_edits_of_a_definition():
    for _, edited in edits(EVERYTHING):
        outcome(lambda e=edited: use(e))
        outcome(lambda e=edited: Study.from_yaml(json.dumps(e)))


def test_damaged_files(tmp_path):
    path = tmp_path / "study.yaml"
    for name, raw in damages(json.dumps(EVERYTHING)):
        path.write_bytes(raw)
        text = outcome(lambda: control.find(str(path)))
        broken = name.startswith(("cut", "twice", "zeros", "not", "a number", "a list", "a deep"))
        assert text.startswith("refused") or not broken, name


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[-30:]))
def test_hostile_yaml(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    assert outcome(lambda: Study.from_yaml(text)).startswith("refused: The study")
    assert not pathlib.Path("marked").exists()


# -- stores --------------------------------------------------------------------------------------

VALUES = [
    *(None, "", "x", -1, 0, 1e308, 2**62, b"\xff\xfe", "nan", float("inf")),
    *("{}", "[]", '{"a": [1]}', "[" * 5000, '{"seed": "x"}', '{"lr": {}}'),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> pathlib.Path:
    """A finished study."""
    folder = tmp_path_factory.mktemp("original") / "store"
    run(tiny(seeds=2, measure_every=1), folder).close()
    return folder


def columns(folder: pathlib.Path) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return [
            (table, column[1])
            for [table] in tables.fetchall()
            for column in connection.execute(f"PRAGMA table_info({table})")
        ]


def edited(original: pathlib.Path, folder: pathlib.Path, statement: str, *values: object) -> bool:
    """A copy of the store after a statement; False if SQLite refuses it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    with contextlib.closing(sqlite3.connect(folder / "runs.sqlite")) as connection:
        try:
            with connection:
                connection.execute(statement, values)
        except sqlite3.Error:
            return False
    with contextlib.suppress(sqlite3.Error):
        seal(folder)  # whoever edits it on purpose does that too
    return True


def visit(folder: pathlib.Path) -> None:
    """All that reads a store."""
    with Store.open(folder) as store:
        assert store.study.name
        store.settings()
        store.machines()
        control.state(store)
        statistics(Population.of(store))
        export(store, folder / "tables")
    resume(folder).close()


def all_edits(folder: pathlib.Path) -> list[tuple[str, tuple[object, ...]]]:
    pairs = columns(folder)
    updates = [
        (f"UPDATE {table} SET {column} = ?", (value,))
        for table, column in pairs
        for value in VALUES
    ]
    tables = sorted({table for table, _ in pairs})
    return [
        *updates,
        *((f"DELETE FROM {table}", ()) for table in tables),
        *((f"DROP TABLE {table}", ()) for table in tables),
        *((f"ALTER TABLE {table} RENAME COLUMN {column} TO other", ()) for table, column in pairs),
    ]


def test_some_edits_of_a_store(original, tmp_path):
    chosen = random.Random(2).sample(all_edits(original), 30)
    outcomes = [
        outcome(lambda: visit(tmp_path / "copy"))
        for statement, values in chosen
        if edited(original, tmp_path / "copy", statement, *values)
    ]
    assert sum(each.startswith("refused") for each in outcomes) > 5  # meta: they do hurt
    assert "done" in outcomes


@pytest.mark.nightly
def test_all_edits_of_a_store(original, tmp_path):
    for statement, values in all_edits(original):
        if edited(original, tmp_path / "copy", statement, *values):
            outcome(lambda: visit(tmp_path / "copy"))


@pytest.mark.parametrize("seed", range(6))
def test_a_database_with_other_bytes(original, tmp_path, seed):
    shutil.copytree(original, tmp_path / "copy")
    path = tmp_path / "copy" / "runs.sqlite"
    content, draw = bytearray(path.read_bytes()), random.Random(seed)
    if seed < 3:
        del content[len(content) * seed // 3 :]
    else:
        for _ in range(200):
            content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content)
    found = outcome(lambda: visit(tmp_path / "copy"))
    assert found.startswith("refused") or seed >= 3  # other bytes may lie where nothing reads them
