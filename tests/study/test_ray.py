"""Real Ray on this machine: the same rows as without it, also when workers are killed."""

import os
import pathlib
import sys
import types

import pytest

import spiritlevel as sl
from spiritlevel.study import RunResult, Store, execute
from spiritlevel.study.executors.ray import files_named, run_remotely
from spiritlevel.study.runs.machine import TF32
from study.ray_turns import ray_turn
from study.tiny_study import lasting, tiny

SRC = pathlib.Path(__file__).parents[2] / "src"
NETS = """
import os, pathlib, signal
from spiritlevel.study.models import mlp

def die_once(mark):
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def make(kind, marks):
    marks = pathlib.Path(marks)
    if kind == "unlucky":
        die_once(marks / "lost-at-the-start")
    model = mlp(inputs=63 if kind == "broken" else 64, hidden=4)
    if kind == "interrupted":
        modes = []  # trained, evaluated, trained on: one epoch is over
        def watch(module, _):
            if modes[-1:] != [module.training]:
                modes.append(module.training)
            if modes == [True, False, True]:
                die_once(marks / "lost-after-an-epoch")
        model.register_forward_pre_hook(watch)
    return model
"""


@pytest.mark.nightly
def test_a_study_on_a_cluster_loses_workers_and_ends_with_the_rows_of_an_undisturbed_one(
    tmp_path, monkeypatch
):
    pytest.importorskip("ray", reason="the ray executor needs ray: pip install 'spiritlevel[ray]'")
    (tmp_path / "ray_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SRC))  # Ray's workers are new interpreters
    study = tiny(
        model={"name": "ray_nets:make", "marks": str(tmp_path)},
        grid={"model.kind": ["unlucky", "interrupted", "steady", "broken"]},
        seeds=2,
    )
    with ray_turn(), Store.create(tmp_path / "cluster", study) as store:
        execute(store, executor="ray", workers=2)
        rows = store.rows("runs")
    assert (tmp_path / "lost-at-the-start").exists()
    assert (tmp_path / "lost-after-an-epoch").exists()
    assert [row["status"] for row in rows] == ["done"] * 6 + ["failed"] * 2
    assert [row["attempt"] for row in rows] == [1] * 8  # Ray's own retry is not a new claim
    assert "mat1 and mat2 shapes cannot be multiplied" in rows[6]["error"]
    with Store.create(tmp_path / "here", study) as store:
        execute(store)
    assert lasting(tmp_path / "cluster") == lasting(tmp_path / "here")


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("ray")
    with ray_turn(), Store.create(tmp_path, tiny()) as store:
        with pytest.raises(sl.SpiritlevelError, match="cluster at 'auto' cannot be reached"):
            execute(store, executor="ray", address="auto")
        assert store.counts().pending == 12


def test_without_ray_the_pip_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        Store.create(tmp_path, tiny()) as store,
        pytest.raises(sl.MissingExtra, match=r"needs ray: pip install 'spiritlevel\[ray\]'"),
    ):
        execute(store, executor="ray")


DEFAULT = TF32(convolutions=True, products=False)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "ray_nets:make"}, "'ray_nets:make'"),
        ({"data": "mine.npz"}, "'mine.npz'"),
        ({"data": {"name": "digits", "test": "folder:pictures"}}, "'folder:pictures'"),
        ({"task": "tosses:toss"}, "'tosses:toss'"),
        ({"model": {"name": "mlp", "init_from": "weights.pt"}}, "'weights.pt'"),
    ],
)
def test_files_of_the_users_need_the_drivers_folder_on_every_machine(tmp_path, changes, named):
    (settings, *_) = tiny(grid={}, **changes).runs()
    error = run_remotely(settings, "cpu", str(tmp_path / "gone"), DEFAULT, 1)
    assert f"this run names {named}. On " in error
    assert f"The folder {str(tmp_path / 'gone')!r}, in which the study was started" in error
    assert "No such file or directory" in error
    assert "file system that all machines share" in error


def test_a_run_that_names_no_file_needs_no_folder(tmp_path):
    (settings, *_) = tiny(grid={}).runs()
    assert isinstance(run_remotely(settings, "cpu", str(tmp_path / "gone"), DEFAULT, 1), RunResult)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "spiritlevel.experiments.normalized_networks:vgg_small"},
        {"data": {"name": "/everywhere/mine.npz", "test": "folder:~/pictures"}},
        {"model": {"name": "mlp", "init_from": "/everywhere/weights.pt"}},
        {"task": "separation"},
    ],
)
def test_what_is_found_from_anywhere_needs_no_folder(changes):
    assert files_named(tiny(grid={}, **changes).runs()[0]) == []


def test_a_drive_of_windows_is_no_kind_of_data(monkeypatch):
    monkeypatch.setattr(os.path, "isabs", lambda path: pathlib.PureWindowsPath(path).is_absolute())
    for given in (r"C:\data\x.npz", r"folder:C:\images", r"mnist:D:\mnist"):
        assert files_named(tiny(grid={}, data={"name": given}).runs()[0]) == []


def cluster_of(asked: list, **resources: float) -> types.ModuleType:
    """What the executor uses of Ray; keeps what it asks for, and runs nothing."""
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: True
    ray.cluster_resources = lambda: resources
    ray.exceptions = types.SimpleNamespace(WorkerCrashedError=KeyError, RayError=LookupError)
    ray.wait = lambda references, timeout: (references, [])
    ray.get = lambda reference: "not run"

    def remote(**options):
        asked.append(options)
        return lambda workspace: types.SimpleNamespace(remote=lambda *_: object())

    ray.remote = remote
    return ray


@pytest.mark.parametrize(
    ("how", "gpus"), [({}, 1.0), ({"per_gpu": 4}, 0.25), ({"device": "cpu"}, 0)]
)
def test_runs_share_a_gpu_of_the_cluster(tmp_path, monkeypatch, how, gpus):
    asked = []
    monkeypatch.setitem(sys.modules, "ray", cluster_of(asked, CPU=8.0, GPU=1.0))
    with Store.create(tmp_path, tiny()) as store:
        execute(store, executor="ray", **{"device": "cuda"} | how)
    assert [options["num_gpus"] for options in asked] == [gpus]


def test_a_cluster_without_gpus_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", cluster_of([], CPU=8.0))
    with (
        Store.create(tmp_path, tiny()) as store,
        pytest.raises(sl.SpiritlevelError, match="needs a GPU, and the Ray cluster has none"),
    ):
        execute(store, executor="ray", device="cuda")


@pytest.mark.parametrize(
    "how",
    [
        {"per_gpu": 0, "executor": "ray", "device": "cuda"},
        {"per_gpu": 2, "executor": "ray"},
        {"per_gpu": 2, "device": "cuda", "workers": 2},
    ],
)
def test_a_share_that_nobody_would_heed_is_refused(tmp_path, how):
    with (
        Store.create(tmp_path, tiny()) as store,
        pytest.raises(sl.SpiritlevelError, match=r"The 'per_gpu' (must|is the number)"),
    ):
        execute(store, **how)
