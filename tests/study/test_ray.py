"""Real Ray on this machine: the same rows as without it, also when workers are killed."""

import pathlib
import sys

import pytest

import spiritlevel as sl
from spiritlevel.study import Store, execute
from tiny_study import lasting, tiny

SRC = pathlib.Path(__file__).parents[2] / "src"
NETS = """
import os, pathlib, signal
from spiritlevel.models import mlp

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
    with Store.create(tmp_path / "cluster", study) as store:
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
    with Store.create(tmp_path, tiny()) as store:
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
