"""A worker that does many runs keeps none of them in memory."""

import gc
import tracemalloc
import weakref

import pytest
import torch

from spiritlevel.study import Store
from spiritlevel.study.executors import local, vmap
from spiritlevel.study.runs import networks, stacked
from study.tiny_study import tiny


@pytest.fixture
def born(monkeypatch) -> list:
    """Every network that a run builds."""
    references: list = []
    real = networks.build_model

    def build(*arguments):
        model = real(*arguments)
        references.append(weakref.ref(model))
        return model

    for module in (networks, stacked):
        monkeypatch.setattr(module, "build_model", build)
    return references


def quick(seeds: int):
    """The shortest run there is: one step, one sample to measure, all the same machinery."""
    return tiny(
        model={"name": "mlp", "hidden": 2},
        data={"name": "digits", "samples": 20},
        training={"epochs": 1, "batch_size": 20},
        grid={},
        seeds=seeds,
        measures=["head.trace"],
        measure_options={"samples": 2},
    )


def tensors() -> int:
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("work", [local.run_here, vmap.work_together], ids=["local", "vmap"])
@pytest.mark.parametrize("runs", [40, pytest.param(300, marks=pytest.mark.nightly)])
def test_many_runs_in_one_worker(tmp_path, born, work, runs):
    with Store.create(tmp_path / "first", quick(4)) as store:
        work(store)  # what is loaded once: data, caches, modules
    born.clear()
    before = tensors()
    tracemalloc.start()
    try:
        with Store.create(tmp_path / "second", quick(runs)) as store:
            work(store)
            assert store.counts().done == runs
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(born) > runs - 1
    assert [reference for reference in born if reference() is not None] == []
    assert tensors() - before < 20
    assert left < 7e3 * runs  # the parsed settings of a study are gone too


def test_a_run_that_fails_is_not_kept_either(tmp_path, born):
    study = quick(5)
    broken = tiny(**(study.to_dict() | {"measures": ["bound.*"], "measure_options": {}}))
    with Store.create(tmp_path, broken) as store:
        local.run_here(store)
    gc.collect()
    assert len(born) >= 5
    assert [reference for reference in born if reference() is not None] == []
