"""Steps that torch.compile has fused are the steps, alone and together, up to round-off."""

import functools
import shutil

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch._dynamo.utils import counters

from spiritlevel.errors import SpiritlevelError
from spiritlevel.study import Store, execute
from spiritlevel.study.runs import steps
from spiritlevel.study.runs.faster_steps import Fused
from spiritlevel.study.runs.running import run_one
from spiritlevel.study.runs.stacked import group_key
from study.tiny_study import tiny

RTOL = 1e-10  # float64: sums are taken in another order
compiles = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")


def runs(**training):
    # 60 samples: two batches of 25, and one of 10.
    common = {"epochs": 2, "batch_size": 25, "momentum": 0.9, "dtype": "float64"}
    return tiny(training=common | training, grid={}, seeds=2)


@pytest.fixture
def compiled():
    """How many graphs were compiled so far; nothing is left from other tests."""
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def assert_same_weights(one: bytes, other: bytes):
    want, have = load(one), load(other)
    assert want.keys() == have.keys()
    for name in want:
        torch.testing.assert_close(have[name], want[name], rtol=RTOL, atol=RTOL)


@compiles
def test_networks_alone_are_compiled_once_for_whole_batches(compiled):
    for plain, fused in zip(runs().runs(), runs(compile=True).runs(), strict=True):
        assert_same_weights(run_one(plain).checkpoint, run_one(fused).checkpoint)
    assert compiled() == 1


@compiles
def test_networks_together(compiled, tmp_path):
    study = runs(compile=True)
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap")
        assert {machine["trained"] for machine in store.machines().values()} == {"together"}
        assert compiled() == 1
        for plain, fused in zip(runs().runs(), study.runs(), strict=True):
            assert_same_weights(run_one(plain).checkpoint, store.checkpoint(fused.id).read_bytes())


def test_each_size_is_compiled_by_itself_however_many_came_before(compiled, monkeypatch):
    """Else the last digits of a run would depend on the runs before it."""
    compile_ = functools.partial(torch.compile, backend="aot_eager")  # counts, and takes no time
    monkeypatch.setattr(torch, "compile", compile_)
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    limit = torch._dynamo.config.cache_size_limit
    for size in range(2, 14):
        x = torch.rand(size, 4)
        torch.testing.assert_close(Fused(network, size)(x), network(x))
    assert compiled() == 12
    assert torch._dynamo.config.cache_size_limit == limit  # the user's own


@pytest.mark.parametrize(("batch_size", "whole"), [(25, 25), (100, 60)])
def test_a_whole_batch_is_never_larger_than_the_data(monkeypatch, batch_size, whole):
    sizes = []
    monkeypatch.setattr(
        steps, "Fused", lambda forward, size: sizes.append(size) or Fused(forward, 0)
    )
    run_one(runs(compile=True, batch_size=batch_size).runs()[0])
    assert sizes == [whole]


def test_it_is_part_of_a_run_and_of_its_group():
    plain, fused = runs().runs()[0], runs(compile=True).runs()[0]
    assert plain.id == runs(compile=False).runs()[0].id != fused.id
    assert group_key(plain) != group_key(fused)


@pytest.mark.parametrize("key", [{"compile": True}, {"autocast": "bfloat16"}])
@pytest.mark.parametrize("changed", [{"method": "sam"}, {"penalty": 0.1}])
def test_methods_and_penalties_take_steps_of_their_own(key, changed):
    with pytest.raises(SpiritlevelError, match=f"training.{next(iter(key))} goes with plain steps"):
        runs(**key, **changed).runs()
