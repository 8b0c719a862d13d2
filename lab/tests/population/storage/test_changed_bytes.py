"""A byte of a store that has changed is an error, or changes nothing: by every way of reading it."""

import contextlib
import json
import pathlib
import random
import shutil
import warnings

import pytest

import spiritlevel as sl
from population.tiny_study import TABLES, tiny, without_checksums
from spiritlevel_lab import Store, execute
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.pages.watch import Watched
from spiritlevel_lab.population import control
from spiritlevel_lab.population.export import export
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics

PLACES = 330  # of which 30 by day
MEASURED = {"measure_every": 1, "seeds": 4, "training": {"epochs": 3, "batch_size": 20}}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("original") / "store"
    with Store.create(folder, tiny(**MEASURED)) as store:
        execute(store)
    return folder


@pytest.fixture(scope="module")
def truth(original) -> dict:
    return seen(original)


def flip(content: bytearray, draw: random.Random) -> None:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def overwrite(content: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(content))
    for place in range(start, min(start + draw.choice([1, 4, 16]), len(content))):
        content[place] = draw.randrange(256)


def zero(content: bytearray, draw: random.Random) -> None:
    start, count = draw.randrange(len(content)), draw.choice([1, 8, 64, 512, 4096])
    content[start : start + count] = bytes(len(content[start : start + count]))


DAMAGES = (flip, overwrite, zero)


def seen(folder: pathlib.Path) -> dict:
    """What every way of reading says, in plain types; an error by its name alone."""

    def status():
        with Store.open(folder) as store:
            return control.state(store).to_dict(), [run.to_dict() for run in store.settings()]

    def tables():
        with Store.open(folder) as store:
            paths = export(store, folder.parent / "tables")
        return [pathlib.Path(path).read_text("utf-8") for path in paths]

    def numbers():
        with Store.open(folder) as store:
            return statistics(Population.of(store), resamples=0).to_dict()

    def report():
        with Store.open(folder) as store:
            return json.dumps(page_of(store).to_dict()).replace(str(folder), "")

    def watch():
        state = Watched(folder).state()
        return {"error": state["waiting"]} if state["waiting"] else state["study"]

    def resume():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as the command, which says it and fails
            control.resume(folder).close()
        with Store.open(folder) as store:
            found = [store.rows(table) for table in TABLES]
            weights = [store.checkpoint(row["id"]).read_bytes() for row in found[0]]
        return found, weights, (folder / "study.json").read_bytes()

    return {look.__name__: said(look) for look in (watch, status, tables, numbers, report, resume)}


def said(look) -> object:
    try:
        found = look()
    except (sl.SpiritlevelError, UserWarning) as error:
        return {"error": str(error)}
    return found


def is_error(found: object) -> bool:
    return isinstance(found, dict) and list(found) == ["error"]


def check(folder: pathlib.Path, truth: dict) -> int:
    """How many ways of reading said that something is wrong; the others must say the truth."""
    found = seen(folder)
    wrong = [way for way in truth if found[way] != truth[way] and not is_error(found[way])]
    assert wrong == []
    return sum(is_error(each) for each in found.values())


def damaged(original: pathlib.Path, folder: pathlib.Path, file: str, seed: int) -> None:
    shutil.copytree(original, folder)
    path, draw = folder / file, random.Random(seed)
    content = bytearray(path.read_bytes())
    while content == path.read_bytes():
        DAMAGES[seed % len(DAMAGES)](content, draw)
    path.write_bytes(content)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("seed", range(PLACES))
def test_of_the_database(original, truth, tmp_path, seed):
    damaged(original, tmp_path / "store", "runs.sqlite", seed)
    check(tmp_path / "store", truth)
