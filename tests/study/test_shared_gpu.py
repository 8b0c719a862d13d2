"""Workers that share a GPU divide its memory: each would else take half of what is free."""

import pytest
import torch

from forked import forks
from spiritlevel.engine import sample_memory
from spiritlevel.study import Store, execute
from spiritlevel.study.executors import processes
from study.tiny_study import tiny

NETS = """
import os, pathlib, torch
from spiritlevel.engine.sample_memory import chunk_memory
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
    monkeypatch.setattr(sample_memory, "_sharing", 1)


@pytest.mark.parametrize(("sharing", "taken"), [(1, 6_000), (3, 2_000)])
def test_a_process_takes_half_of_its_part_of_the_free_memory(gpus, sharing, taken):
    sample_memory.share_gpu(sharing)
    assert sample_memory.chunk_memory(torch.device("cuda"), None) == taken
    assert sample_memory.chunk_memory(torch.device("cuda"), 77) == 77  # a limit stays a limit


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
    assert processes._sharing(workers, device) == sharing
