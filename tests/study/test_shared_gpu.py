"""Workers that share a GPU divide its memory, and are told where a limit makes them wrong."""

import warnings

import pytest
import torch

from forked import forks
from spiritlevel.engine import memory
from spiritlevel.study import Store, execute
from spiritlevel.study.executors import processes, vmap
from spiritlevel.study.executors.processes import workers_per_gpu
from spiritlevel.study.models import mlp
from spiritlevel.study.runs import steps
from spiritlevel.study.runs.running import run_one
from spiritlevel.study.runs.steps import MPS_LIMIT, warn_of_limited_gpu
from study.tiny_study import tiny

NETS = """
import os, pathlib, torch
from spiritlevel.engine.memory import chunk_memory
from spiritlevel.study.models import mlp

def make():
    torch.cuda.mem_get_info = lambda device: (12_000, 99_000)
    taken = chunk_memory(torch.device("cuda"), None)
    pathlib.Path(f"taken-{os.getpid()}").write_text(str(taken))
    return mlp(hidden=4)
"""


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12_000, 99_000))
    monkeypatch.setattr(memory, "_sharing", 1)


@pytest.mark.parametrize(("sharing", "taken"), [(1, 6_000), (3, 2_000)])
def test_a_process_takes_half_of_its_part_of_the_free_memory(gpus, sharing, taken):
    memory.share_gpu(sharing)
    assert memory.chunk_memory(torch.device("cuda"), None) == taken
    assert memory.chunk_memory(torch.device("cuda"), 77) == 77  # a limit stays a limit


def test_workers_are_told_how_many_they_are(tmp_path, monkeypatch):
    (tmp_path / "taking_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    forks()
    monkeypatch.setattr(processes, "START", "forkserver")
    study = tiny(model="taking_nets:make", grid={}, seeds=4)
    with Store.create(tmp_path / "study", study) as store:
        assert execute(store, workers=2).done == 4
    assert {file.read_text() for file in tmp_path.glob("taken-*")} == {"3000"}


@pytest.mark.parametrize(
    ("workers", "gpus", "device", "sharing"),
    [(8, 1, "cuda", 8), (8, 4, "cuda", 2), (3, 2, "cuda", 2), (8, 4, "cuda:1", 8)],
)
def test_workers_are_spread_over_the_gpus_unless_one_is_named(
    monkeypatch, workers, gpus, device, sharing
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert workers_per_gpu(workers, device) == sharing


def test_networks_that_train_together_are_as_many_as_fit_beside_the_other_workers(monkeypatch):
    # torch draws weights with the random numbers of all GPUs there are, and here are none.
    monkeypatch.setattr(vmap, "build_model", lambda run, device: mlp(hidden=4))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    fitting = []
    for free in (1 << 24, 1 << 25):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        for workers, device in ((2, "cuda:1"), (8, "cuda"), (1, "cuda:1")):
            fitting.append(vmap._most_together(tiny().runs()[0], device, workers))
    two_on_one, two_on_each, one, *with_twice_the_memory = fitting
    assert two_on_one == two_on_each < one
    assert with_twice_the_memory[0] == one


@pytest.mark.parametrize(("share", "is_wrong"), [("60", True), ("100", False), ("", False)])
def test_a_limit_on_the_gpu_is_told_where_bfloat16_may_be_wrong(monkeypatch, share, is_wrong):
    monkeypatch.setenv(MPS_LIMIT, share)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_limited_gpu(torch.device("cpu"))
        assert not told
        warn_of_limited_gpu(torch.device("cuda"))
    assert ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is '60'" in str(each.message) for each in told] == (
        [True] if is_wrong else []
    )


def test_only_steps_in_bfloat16_ask_for_it(monkeypatch):
    asked = []
    monkeypatch.setattr(steps, "warn_of_limited_gpu", asked.append)
    for autocast in ("none", "bfloat16"):
        training = {"epochs": 1, "batch_size": 20, "autocast": autocast}
        run_one(tiny(training=training, grid={}, seeds=1).runs()[0])
    assert asked == [torch.device("cpu")]
