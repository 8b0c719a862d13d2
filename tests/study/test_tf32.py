"""What decides the last digits on a GPU is handed to workers and kept with the runs."""

import json

import pytest
import torch

from forked import forks
from spiritlevel.study import Store, execute
from spiritlevel.study.executors import processes
from spiritlevel.study.models import mlp, registry
from spiritlevel.study.runs.faster_steps import recordable
from spiritlevel.study.runs.machine import machine, repeatable
from study.tiny_study import tiny

NETS = """
import os, pathlib, torch
from spiritlevel.study.models import mlp

def make():
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    pathlib.Path(f"flags-{os.getpid()}").write_text(repr(flags))
    return mlp(hidden=4)
"""


@pytest.fixture(params=[(False, True), (False, False)])
def chosen(request):
    """Flags of this process, for convolutions and for products; torch's own are (True, False)."""
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend, allowed in zip(backends, request.param, strict=True):
        backend.allow_tf32 = allowed
    yield request.param
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


def test_workers_have_the_flags_of_the_process_that_started_them(tmp_path, monkeypatch, chosen):
    (tmp_path / "noting_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")
    with Store.create(
        tmp_path / "study", tiny(model="noting_nets:make", grid={}, seeds=4)
    ) as store:
        assert execute(store, workers=2).done == 4
    noted = {file.read_text() for file in tmp_path.glob("flags-*")}
    assert noted == {repr(chosen)}


def test_a_run_on_a_gpu_says_with_which_libraries_and_flags(monkeypatch, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device}")
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    with repeatable(threads=1):  # changes flags of cuDNN for the time of a run, but not this one
        found = json.loads(machine("cuda:77", threads=1))
    assert (found["tf32_convolutions"], found["tf32_products"]) == chosen
    assert (found["device"], found["cuda"], found["cudnn"]) == ("GPU cuda:77", "12.9", 91002)


def test_a_run_on_a_cpu_is_described_as_before():
    assert sorted(json.loads(machine("cpu", threads=1))) == [
        "device",
        "host",
        "python",
        "spiritlevel",
        "system",
        "threads",
        "torch",
        "trained",
    ]


def make():
    return mlp()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mlp", True),
        ("spiritlevel.experiments.normalized_networks:vgg_small", True),
        ("my_nets:make", False),
        ("spiritlevel_nets:make", False),
        ("mine.spiritlevel:make", False),
        ("theirs", False),
    ],
)
def test_steps_of_the_packages_own_networks_are_recorded_on_a_gpu(model, expected, monkeypatch):
    monkeypatch.setitem(registry._registered, "theirs", make)  # by another package
    assert recordable(model, torch.device("cuda")) is expected
    assert not recordable(model, torch.device("cpu"))
