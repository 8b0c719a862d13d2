"""Stores that earlier versions wrote are read: `written/` holds one, and is never written anew."""

import pathlib
import shutil
import sqlite3

import pytest

import spiritlevel as sl
from spiritlevel_lab import Store
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.storage import schema

WRITTEN = pathlib.Path(__file__).parent / "written"


@pytest.fixture
def store(tmp_path):
    return shutil.copytree(WRITTEN / "store", tmp_path / "store")


def test_a_study_is_read(store):
    with Store.open(store) as opened:
        population = Population.of(opened)
        assert len(population.column("head.kappa")) == 2


def test_a_store_says_its_format(store):
    with sqlite3.connect(store / "runs.sqlite") as database:
        [version] = database.execute("PRAGMA user_version").fetchone()
        assert 1 <= version <= schema.VERSION
        database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    with pytest.raises(sl.SpiritlevelError, match="was written by a newer spiritlevel"):
        Store.open(store)
