"""A study file or a received store runs no code that nobody on this machine vouched for."""

import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import textwrap

import pytest
import torch
from typer.testing import CliRunner

import fresh
import spiritlevel as sl
import spiritlevel_lab
from population.tiny_study import seal, tiny
from spiritlevel.cli.app import app
from spiritlevel.ground import plugins, user_code
from spiritlevel.inputs.models import build
from spiritlevel_lab import RunSettings, Store, Study, execute, resume, run
from spiritlevel_lab.population import control

ONE = {"grid": {}, "seeds": 1, "training": {"epochs": 1}}
# Whatever a name can reach that does something when it is imported or called.
HOSTILE = [
    "subprocess:call",
    "subprocess:Popen",
    "os:system",
    "posix:system",
    "builtins:eval",
    "builtins:exec",
    "shutil:rmtree",
    "runpy:run_path",
    "pickle:loads",
    "torch:load",
    "torch.hub:load",
    "torch.jit:load",
    "torch.utils.model_zoo:load_url",
    "antigravity:geohash",  # importing it opens a browser
    "webbrowser:open",
    "urllib.request:urlretrieve",
    "spiritlevel.ground.files:write_atomically",
    "spiritlevel.inputs.models.registry:build",
    "spiritlevel.ground.user_code:imported",
    "spiritlevel_lab.papers:record",
    "spiritlevel_lab.population.existing.measuring:load_parts",
    "torch.nn:Linear",
]
PASSED_ON = """
    import functools, os, subprocess
    from os import system
    from subprocess import call, Popen
    from shutil import rmtree
    from torch.hub import load
    from builtins import eval as evaluate
    partial = functools.partial(os.system, "touch marked")
    partial_call = functools.partial(subprocess.call, "touch marked", shell=True)
    bound = subprocess.Popen.__init__
    command = "touch marked"

    class Runner:
        def __init__(self, **arguments):
            os.system(command)
"""
OWN = """
    import functools
    import torch
    from torch import nn
    from torch.nn import Linear

    def make(width=4):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    @torch.no_grad()
    def decorated():
        return make()

    small = functools.partial(make, width=2)
    cached = functools.cache(make)
    shorthand = lambda: make()

    class Net(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 10))

        @classmethod
        def make(cls):
            return cls()

    made = Net.make
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder; modules written there are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in repr(sys.modules[name].__spec__):  # of a folder too, without a file
            del sys.modules[name]


def write(path: pathlib.Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))


def refused(study: Study) -> str:
    with pytest.raises(user_code.CodeNotAllowed) as caught:
        control.check(study)
    return str(caught.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("role", ["model", "task", "penalty"])
def test_code_of_installed_modules_is_refused(here, role, name):
    changes = {
        "model": {"model": name},
        "task": {"task": name},
        "penalty": {"training": {"epochs": 1, "penalty": {"name": name, "weight": 0.1}}},
    }
    imported = set(sys.modules)
    text = refused(tiny(**(ONE | changes[role])))
    assert f"The study's {role} {name!r}" in text
    assert "--allow-code" in text
    assert "allow_code=True" in text
    assert name.partition(":")[0] in imported or name.partition(":")[0] not in sys.modules


@pytest.mark.parametrize("attribute", ["system", "call", "Popen", "rmtree", "load", "evaluate"])
def test_a_module_in_the_working_folder_does_not_vouch_for_what_it_passes_on(here, attribute):
    write(here / "passing.py", PASSED_ON)
    refused(tiny(**ONE, model=f"passing:{attribute}"))


@pytest.mark.parametrize("attribute", ["partial", "partial_call", "bound", "Runner"])
def test_nor_for_what_is_wrapped_or_no_network(here, attribute):
    write(here / "passing.py", PASSED_ON)
    refused(tiny(**ONE, model=f"passing:{attribute}"))
    assert not (here / "marked").exists()


@pytest.mark.parametrize("name", ["pkg:mod.attr", "os.path:os.system", "a/b:make", ".os:system"])
def test_a_name_is_one_module_and_one_attribute(here, name):
    with pytest.raises(sl.SpiritlevelError, match="must be written 'module:factory'"):
        control.check(tiny(**ONE, model=name))


@pytest.mark.parametrize(
    "attribute", ["make", "decorated", "small", "cached", "shorthand", "Net", "made"]
)
def test_functions_and_networks_of_the_working_folder_run(here, attribute):
    write(here / "own_nets.py", OWN)
    with run(tiny(**ONE, model=f"own_nets:{attribute}"), here / "out") as store:
        assert store.counts().done == 1


def test_a_package_and_a_neighbour_in_the_working_folder_run(here):
    write(here / "own_package" / "nets.py", OWN)
    write(here / "entrance.py", "from own_package.nets import make, Linear")
    for name in ("own_package.nets:make", "entrance:make"):
        control.check(tiny(**ONE, model=name))


def test_a_module_of_the_working_folder_is_not_mixed_up_with_one_of_the_same_name(here):
    write(here / "subprocess.py", "def call(**arguments):\n    pass")  # another was imported before
    (here / "antigravity").mkdir()  # a folder is no module while there is a module
    refused(tiny(**ONE, model="subprocess:call"))
    refused(tiny(**ONE, model="antigravity:geohash"))
    assert "antigravity" not in sys.modules


def test_links_to_installed_code_do_not_make_it_the_users(here):
    (here / "linked.py").symlink_to(subprocess.__file__)
    (here / "library").symlink_to(pathlib.Path(os.__file__).parent)
    refused(tiny(**ONE, model="linked:call"))
    refused(tiny(**ONE, model="library.subprocess:call"))


def test_the_standard_library_is_no_working_folder(monkeypatch):
    monkeypatch.chdir(pathlib.Path(os.__file__).parent)
    refused(tiny(**ONE, model="shutil:rmtree"))


def test_an_environment_inside_the_working_folder_is_not_the_users_code(here, monkeypatch):
    packages = here / "env" / "site_packages"
    write(packages / "foreign.py", OWN)
    monkeypatch.syspath_prepend(str(packages))
    refused(tiny(**ONE, model="foreign:make"))


def test_an_installed_package_vouches_by_its_entry_point(here, tmp_path_factory, monkeypatch):
    packages = tmp_path_factory.mktemp("packages")
    write(packages / "vouched.py", OWN + "\n    from shutil import rmtree")
    write(packages / "beside.py", OWN)
    write(
        packages / "vouched-1.dist-info" / "entry_points.txt",
        "[spiritlevel.studies]\nmine = vouched",
    )
    write(packages / "vouched-1.dist-info" / "METADATA", "Name: vouched\nVersion: 1")
    monkeypatch.syspath_prepend(str(packages))
    control.check(tiny(**ONE, model="vouched:make"))
    refused(tiny(**ONE, model="beside:make"))
    refused(tiny(**ONE, model="vouched:rmtree"))


def test_registered_names_and_what_a_user_types_stay_allowed(here):
    registered = "spiritlevel.experiments.normalized_networks:vgg_small"
    control.check(tiny(**ONE, model={"name": registered, "width": 2, "channels": 1}))
    assert build("torch.nn:Linear", in_features=2, out_features=3).weight.shape == (3, 2)


@pytest.mark.parametrize("package", [sl, spiritlevel_lab])
def test_our_own_modules_are_not_forgotten_with_the_folder(here, monkeypatch, package):
    name = f"{package.__name__}:__version__"
    monkeypatch.chdir(pathlib.Path(package.__file__).parents[1])
    user_code.imported(name, what="model")
    monkeypatch.chdir(here)
    user_code.imported(name, what="model")
    assert sys.modules[package.__name__] is package


def shell(here, **fields) -> pathlib.Path:
    """A study file whose model is a shell command that leaves a mark."""
    mark = here / "marked"
    path = here / "hostile.yaml"
    fields = {
        "name": "hostile",
        "model": {"name": "subprocess:call", "args": f"touch {mark}", "shell": True},
        "data": {"name": "digits", "samples": 40},
        "training": {"epochs": 1},
    } | fields
    path.write_text(json.dumps(fields))
    return path


def test_study_run_and_resume_ask_first(here):
    path, mark = shell(here), here / "marked"
    result = CliRunner().invoke(app, ["study", "run", str(path), "--out", "out"])
    assert result.exit_code == 1
    assert "error: The study's model 'subprocess:call' would run code" in result.output
    assert not mark.exists()
    assert not (here / "out").exists()


def test_a_received_store_asks_first_whatever_its_tables_say(here):
    with Store.create(here / "store", tiny(**ONE)) as store:
        [settings] = store.settings()
    hostile = json.loads(settings.canonical)
    hostile["model"] = {"name": "subprocess:call", "args": f"touch {here}/marked", "shell": True}
    with sqlite3.connect(here / "store" / "runs.sqlite") as connection:
        text = json.dumps(hostile)
        id_ = RunSettings.from_json(text, "{}").id
        connection.execute("UPDATE runs SET settings = ?, id = ?", (text, id_))
    seal(here / "store")
    for how in ({}, {"workers": 2}, {"executor": "vmap"}):
        with pytest.raises(user_code.CodeNotAllowed, match="'subprocess:call'"):
            resume(here / "store", **how)
        with (
            Store.open(here / "store") as store,
            pytest.raises(user_code.CodeNotAllowed, match="'subprocess:call'"),
        ):
            execute(store, **how)
    result = CliRunner().invoke(app, ["study", "resume", "store"])
    assert result.exit_code == 1
    assert "give --allow-code" in result.output
    assert not (here / "marked").exists()


def test_code_inside_a_received_store_asks_first_even_in_that_folder(here, monkeypatch):
    write(here / "own_nets.py", OWN)
    Store.create(here, tiny(**ONE, model="own_nets:make")).close()
    with pytest.raises(user_code.CodeNotAllowed, match="lies in the folder of the study itself"):
        resume(here)
    with resume(here, allow_code=True) as store:
        assert store.counts().done == 1


CANARY = "open('ran', 'a').write('x')\n" + textwrap.dedent(OWN)
PLACES = {  # of a study or store, and of the code that came with it, in the working folder
    "in the store": ("received", "received/evil.py", "received.evil:make"),
    "in the package around": ("received", "received/__init__.py", "received.evil:make"),
    "beside the store": ("pack/received", "pack/evil.py", "pack.evil:make"),
    "elsewhere in what was unpacked": (
        "pack/a/received",
        "pack/code/evil.py",
        "pack.code.evil:make",
    ),
}


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("how", ["store", "study"])
def test_code_that_came_with_a_study_does_not_even_get_imported(here, place, how):
    folder, file, name = PLACES[place]
    if how == "store":
        Store.create(here / folder, tiny(**ONE, model=name)).close()
        arguments = ["study", "resume", folder]
    else:
        (here / folder).mkdir(parents=True)
        (here / folder / "study.yaml").write_text(json.dumps(tiny(**ONE, model=name).to_dict()))
        arguments = ["study", "run", f"{folder}/study.yaml", "--out", "out"]
    if place == "in the package around":
        write(here / "received" / "evil.py", OWN)
    write(here / file, CANARY)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "give --allow-code" in result.output
    assert not list(here.rglob("ran"))
    result = CliRunner().invoke(app, [*arguments, "--allow-code"])  # the canary sings
    assert result.exit_code == 0, result.output
    assert (here / "ran").exists()


def test_code_of_the_project_runs_for_a_study_in_a_folder_of_it(here):
    write(here / "nets.py", OWN)
    write(here / "package" / "nets.py", OWN)
    (here / "studies").mkdir()
    for name in ("nets:make", "package.nets:make"):
        path = here / "studies" / "mine.yaml"
        path.write_text(json.dumps(tiny(**ONE, model=name).to_dict()))
        out = f"runs/{name.partition(':')[0]}"
        result = CliRunner().invoke(app, ["study", "run", str(path), "--out", out])
        assert result.exit_code == 0, result.output


def test_a_script_is_not_run_to_see_that_it_has_no_such_function(here):
    write(here / "deploy.py", "open('ran', 'a').write('deployed')")
    with pytest.raises(sl.SpiritlevelError, match="was read, and not imported"):
        control.check(tiny(**ONE, model="deploy:main"))
    assert not (here / "ran").exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root gives files away")
def test_code_of_another_user_in_a_shared_folder_is_refused(here):
    write(here / "evil.py", CANARY)
    os.chown(here / "evil.py", 12345, -1)
    assert "belongs to another user" in refused(tiny(**ONE, model="evil:make"))
    assert not (here / "ran").exists()
    os.chown(here, 12345, -1)  # root works in the folder of that user
    control.check(tiny(**ONE, model="evil:make"))


def test_a_table_of_networks_brings_no_code_along(here):
    write(here / "received" / "evil.py", CANARY)
    torch.save(build("mlp", hidden=(4,)).state_dict(), here / "received" / "a.pt")
    (here / "received" / "table.csv").write_text("checkpoint,model\na.pt,received.evil:make\n")
    arguments = ["study", "measure", "received/table.csv", "--data", "digits", "--out", "out"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "give --allow-code" in result.output
    assert not (here / "ran").exists()


def test_a_folder_does_not_install_itself_by_being_worked_in(here):
    for module in ("yaml", "typer", "rich", "evil"):
        write(here / f"{module}.py", CANARY)
    info = here / "evil-1.dist-info"
    groups = ("commands", "pages", "studies", "measures")
    named = "\n".join(f"[spiritlevel.{each}]\nevil = evil:app" for each in groups)
    write(info / "entry_points.txt", named)
    write(info / "METADATA", "Name: evil\nVersion: 1")
    Store.create(here, tiny(**ONE)).close()
    done = subprocess.run(
        [sys.executable, "-m", "spiritlevel", "study", "status", "."],
        env=os.environ | {"PYTHONPATH": fresh.PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "0 of 1 runs done" in done.stdout
    assert not (here / "ran").exists()


def test_the_working_folder_on_the_path_installs_nothing(here, monkeypatch):
    write(here / "evil-1.dist-info" / "entry_points.txt", "[spiritlevel.studies]\nevil = evil")
    for place, others in [(str(here), list(sys.path)), ("", list(sys.path))]:
        monkeypatch.setattr(sys, "path", [place, *others])
        assert "evil" not in {point.module for point in plugins.points("spiritlevel.studies")}
    monkeypatch.setattr(sys, "path", [str(here), str(here), *others])  # as PYTHONPATH names it
    assert "evil" in {point.module for point in plugins.points("spiritlevel.studies")}


def test_allow_code_runs_it(here, monkeypatch):
    """Meta-test: the command would have run, and the switch is what keeps it from running."""
    path = shell(here)
    result = CliRunner().invoke(app, ["study", "run", str(path), "--out", "out", "--allow-code"])
    assert (here / "marked").exists()
    assert result.exit_code == 1  # an exit status is no network
    assert "1 of 1 runs failed" in result.output
    (here / "marked").unlink()
    CliRunner().invoke(app, ["study", "resume", "out"])
    assert not (here / "marked").exists()
    CliRunner().invoke(app, ["study", "resume", "out", "--allow-code"])
    assert (here / "marked").exists()
