"""Under DistributedDataParallel the weights of all processes stay the same, bit for bit."""

import pathlib

import pytest
import torch

from forked import needs_gloo, run_in_two_processes, run_script

WORKER = pathlib.Path(__file__).with_name("sam_worker.py")

pytestmark = needs_gloo


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of each process of two, and of one with all data."""
    folder = tmp_path_factory.mktemp("sam")
    run_in_two_processes(WORKER, folder / "two")
    run_script(WORKER, folder / "one")
    return {name: torch.load(folder / name) for name in ("two.0", "two.1", "one.0")}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sam", "own ascent", "asam", "noise", "batch norm"])
def test_weights_stay_the_same_in_all_processes(found, kind):
    first, second = found["two.0"][kind], found["two.1"][kind]
    for name in first:
        if "running" not in name:  # statistics are of each process's own batches
            assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("kind", ["sam", "asam"])
def test_two_processes_make_the_steps_of_one(found, kind):
    for name, weight in found["one.0"][kind].items():
        torch.testing.assert_close(found["two.0"][kind][name], weight, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", ["own ascent", "noise"])
def test_own_displacements_are_another_training(found, kind):
    """Meta: the processes did displace their weights differently."""
    weight = "0.weight"
    assert not torch.allclose(found["two.0"][kind][weight], found["one.0"][kind][weight])


def test_statistics_are_updated_once_a_step(found):
    assert all(int(one["batch norm"]["1.num_batches_tracked"]) == 4 for one in found.values())
