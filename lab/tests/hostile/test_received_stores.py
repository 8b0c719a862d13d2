"""A store that a stranger sent, opened by every command: nothing runs, nothing is deleted."""

import os
import pathlib
import pickle
import shutil
import sys

import pytest
from typer.testing import CliRunner

from population.tiny_study import tiny
from spiritlevel.cli.app import app
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.storage.claims import new_worker

SINGS = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"
NET = "from spiritlevel.inputs.models import mlp\ndef make(**options): return mlp(hidden=4)\n"
MODULES = ("evil", "yaml", "typer", "torch", "sitecustomize", "conftest", "__init__", "study")
COMMANDS = {  # the first also writes; SQLite unlinks a log that is a link when it closes
    "resume": ["study", "resume", "STORE"],
    "status": ["study", "status", "STORE"],
    "report": ["study", "report", "STORE"],
    "html": ["study", "report", "STORE", "--html", "OUT/study.html"],
    "export": ["study", "export", "STORE"],
    "figures": ["study", "figures", "STORE", "--measures", "head.trace"],
    "watch": ["watch", "STORE", "--json", "OUT/watch.json"],
    "page": ["report", "STORE", "--out", "OUT/page.html"],
    "retrain": ["study", "resume", "STORE", "--retrain"],
    "measure": [
        *("study", "measure", "STORE", "--model", "mlp", "--model-arg", "hidden=4"),
        *("--data", "digits", "--samples", "20", "--out", "OUT/measured"),
    ],
}
LINKS = {  # in the store: what it leads to, among the files of whoever received it
    "unfinished": "models",
    "checkpoints": "models",
    "export": "models",
    "figures": "models",
    "study.json": "notes.json",
    "runs.sqlite": "mine/runs.sqlite",
    "runs.sqlite-wal": "notes.json",
    "runs.sqlite-shm": "notes.json",
    "runs.sqlite-journal": "notes.json",
    "unfinished/ID.alone.pt": "models/best.pt",
    "checkpoints/ID.safetensors": "models/best.pt",
    "checkpoints/.ID.safetensors.abcdefgh": "models/best.pt",
}


class Sings:
    """Unpickled, it leaves a mark in the working folder."""

    def __reduce__(self):
        return exec, ("open('ran', 'w')",)


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> pathlib.Path:
    """A finished study, and one that was stopped after its first run."""
    folder = tmp_path_factory.mktemp("stores")
    with Store.create(folder / "finished", tiny(seeds=2)) as store:
        execute(store)
    with Store.create(folder / "stopped", tiny(seeds=2)) as store:
        claim = store.claim(new_worker())
        store.finish(claim, run_one(claim.settings))
    return folder


@pytest.fixture
def home(stores, tmp_path, monkeypatch) -> pathlib.Path:
    """The folder of whoever receives a store: with files that nobody else may touch."""
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    for name in ("best.pt", "runs.csv", "measurements.csv", "gap.png", "correlations.png"):
        (home / "models" / name).write_bytes(b"three weeks of training")
    (home / "models" / ".best.pt.abcdefgh").write_bytes(b"three weeks of training")
    (home / "notes.json").write_text("{}")
    shutil.copytree(stores / "finished", home / "mine")
    monkeypatch.setattr("spiritlevel.pages.figures.save", lambda figure, kind: b"drawn")
    return home


def content(home: pathlib.Path) -> dict[str, bytes]:
    """All files but those of the store that was received, and what a command was asked to write."""
    return {
        str(path): path.read_bytes()
        for top in ("models", "notes.json", "mine")
        for path in (home / top, *(home / top).rglob("*"))
        if path.is_file()
    }


def opened_by_all(home: pathlib.Path, monkeypatch, *, inside: bool) -> dict[str, int]:
    """Exit codes of all commands; what they say is a sentence, never a traceback."""
    store, codes = home / "received", {}
    (home / "out").mkdir(exist_ok=True)
    monkeypatch.chdir(store if inside else home)
    names = {"STORE": "." if inside else "received"}
    before, path = content(home), list(sys.path)
    for command, words in COMMANDS.items():
        arguments = [names.get(word, word).replace("OUT", str(home / "out")) for word in words]
        result = CliRunner().invoke(app, arguments)
        error = result.exception
        assert error is None or isinstance(error, SystemExit | SpiritlevelError), (command, error)
        assert content(home) == before, command
        assert not list(home.rglob("ran")), command
        codes[command] = result.exit_code
    assert sys.path == path
    return codes


def plant(store: pathlib.Path) -> None:
    """Code and pickles under every name that something could import or load."""
    for name in MODULES:
        (store / f"{name}.py").write_text(SINGS + NET)
    (store / "evil-1.dist-info").mkdir()
    groups = ("commands", "pages", "studies", "measures")
    named = "\n".join(f"[spiritlevel.{each}]\nevil = evil:make" for each in groups)
    (store / "evil-1.dist-info" / "entry_points.txt").write_text(named)
    (store / "evil-1.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1")
    (store / "unfinished").mkdir()
    with Store.open(store) as opened:
        ids = opened.states()
    for id_ in ids:
        for name in (f"{id_}.alone.pt", f"{id_}.pt", f"{id_}.trained.pt", "other.pt"):
            (store / "unfinished" / name).write_bytes(pickle.dumps(Sings()))
        if (weights := store / "checkpoints" / f"{id_}.safetensors").exists():
            weights.write_bytes(pickle.dumps(Sings()))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("which", ["finished", "stopped"])
def test_canaries_stay_silent(stores, home, monkeypatch, which, inside):
    shutil.copytree(stores / which, home / "received")
    plant(home / "received")
    codes = opened_by_all(home, monkeypatch, inside=inside)
    assert codes["status"] == codes["export"] == codes["watch"] == 0
    assert codes["resume"] == 1  # the weights are not those that were stored
    assert codes["retrain"] == 0
    assert (home / "received" / "unfinished" / "other.pt").exists()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("role", ["model", "task", "penalty"])
def test_code_in_a_store_that_was_never_run(home, monkeypatch, role, inside):
    name = "evil:make" if inside else "received.evil:make"
    changes = {
        "model": {"model": name},
        "task": {"task": name},
        "penalty": {"training": {"epochs": 1, "penalty": {"name": name, "weight": 0.1}}},
    }[role]
    Store.create(home / "received", tiny(grid={}, seeds=2, **changes)).close()
    plant(home / "received")
    codes = opened_by_all(home, monkeypatch, inside=inside)
    assert codes["status"] == codes["export"] == codes["watch"] == 0
    assert codes["resume"] == codes["retrain"] == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("which", ["finished", "stopped"])
@pytest.mark.parametrize("link", list(LINKS))
@pytest.mark.parametrize("kind", ["link", "second name"])
def test_links_lead_nowhere(stores, home, monkeypatch, which, link, kind):
    store, target = home / "received", home / LINKS[link]
    shutil.copytree(stores / which, store)
    with Store.open(store) as opened:
        id_ = list(opened.states())[-1]
    path = store / link.replace("ID", id_)
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "link" or target.is_dir():
        path.symlink_to(os.path.relpath(target, path.parent), target_is_directory=target.is_dir())
    else:
        os.link(target, path)
    opened_by_all(home, monkeypatch, inside=False)


def test_the_canaries_sing(home, monkeypatch):
    """Meta-test: what is planted would be noticed if it ran."""
    monkeypatch.chdir(home)
    pickle.loads(pickle.dumps(Sings()))
    assert (home / "ran").exists()
    (home / "ran").unlink()
    exec(SINGS, {"__file__": "evil.py"})
    assert (home / "ran").exists()
