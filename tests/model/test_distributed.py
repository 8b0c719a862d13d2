"""Several processes on parts of the data give the numbers of one process on all of it."""

import functools
import json
import pathlib

import pytest
import torch

from forked import needs_gloo, run_in_two_processes, run_script
from model.reports import same_numbers
from model.torchrun import ABORTED, torchrun

HERE = pathlib.Path(__file__).parent
WORKER = HERE / "distributed_worker.py"
EXAMPLE = HERE.parents[1] / "examples" / "measure_in_processes.py"
CUTS = ["0:15,15:23", "0:0,0:23"]  # unequal parts, and one without data

pytestmark = needs_gloo


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds on all data, by case."""
    out = tmp_path_factory.mktemp("one") / "found"
    run_script(WORKER, "0:23", out)
    return json.loads(pathlib.Path(f"{out}.0").read_text())["0:23"]


@pytest.fixture(scope="module")
def in_two(tmp_path_factory):
    """What each of two processes finds where the data is cut so, computed once."""

    @functools.cache
    def found(cuts):
        out = tmp_path_factory.mktemp("two") / "found"
        run_in_two_processes(WORKER, cuts, out)
        return [json.loads(pathlib.Path(f"{out}.{rank}").read_text())[cuts] for rank in range(2)]

    return found


@pytest.fixture(params=[CUTS[0], pytest.param(CUTS[1], marks=pytest.mark.nightly)])
def together(request, in_two):
    """What each of two processes finds on its part, by case."""
    return in_two(request.param)


SAME = ["exact", "probes", "smooth", "hutch++", "ddp", "bare", "others"]


@pytest.mark.parametrize("case", [*SAME, "smooth, in groups of samples"])
def test_two_processes_equal_one(alone, together, case):
    for found in together:
        same_numbers(found[case], alone[case])
        assert found[case]["settings"]["num_samples"] == 23
        assert found[case]["settings"]["processes"] == 2
        if case == "exact":
            same_numbers(found[case], alone[case], keys=("data_stderr",))


def test_what_is_told_may_be_long_in_one_process_and_short_in_another(together):
    for found in together:
        assert found["told"] == ["0" * 10, "1" * 5010]


def test_the_cost_is_that_of_all_processes(alone, together):
    expected = alone["exact"]["measures"]["head.trace"]["cost"]
    for found in together:
        assert found["exact"]["measures"]["head.trace"]["cost"] == expected


def test_the_cases_are_what_they_are_called(alone):
    trace = {case: alone[case]["measures"]["curvature.trace"] for case in ("probes", "smooth")}
    assert "output probes for 23 columns" in trace["probes"]["text"]
    assert "weight probes" in trace["smooth"]["text"]
    assert alone["exact"]["measures"]["curvature.trace"]["exact"]


def test_eigenvalues_in_two_processes(alone, together):
    expected = alone["eigenvalues"]
    # 1e-10 of the largest: a smallest eigenvalue near 0 has no digits of its own
    scale = abs(expected["measures"]["curvature.lambda_max"]["value"])
    for both in together:
        found = both["eigenvalues"]
        for name, measurement in expected["measures"].items():
            value = found["measures"][name]["value"]
            assert value == pytest.approx(measurement["value"], rel=1e-10, abs=1e-10 * scale), name
        assert found["top"] == pytest.approx(expected["top"], rel=1e-10, abs=1e-10 * scale)
        assert found["moment"] == pytest.approx(expected["moment"], rel=1e-10)


def test_an_error_in_one_process_is_raised_in_all(together):
    errors = [found["bad"]["error"] for found in together]
    assert all("holds NaN" in error for error in errors)
    told = [error for error in errors if "could not measure its part" in error]
    assert len(told) == 1
    assert "Process 0" in told[0] or "Process 1" in told[0]


@pytest.mark.parametrize(
    ("case", "how"),
    [("FullyShardedDataParallel", "FSDP1"), ("tensor parallel", "by tensor parallelism")],
)
def test_models_that_are_divided_in_another_way_are_refused(together, case, how):
    for found in together:
        assert how in found[case]["error"]
        assert "full_state_dict=True" in found[case]["error"]


@pytest.mark.parametrize("case", ["fully_shard", "fully_shard smooth"])
def test_a_sharded_model_has_the_values_of_a_whole_one(alone, together, case):
    for found in together:
        same_numbers(found[case], alone[case])
        assert found[case]["afterwards"]["kinds"] == ["DTensor"]  # divided again
    steps = [found[case]["afterwards"]["changed"] for found in together]
    assert steps[0] == steps[1]
    assert min(steps[0]) > 0  # it trains on


def test_training_with_ddp_goes_on_as_before(tmp_path):
    """torch drops DDP's hooks from a parameter whose values change their type."""
    out = tmp_path / "told"
    run_in_two_processes(HERE / "ddp_training_worker.py", out)
    first, second = (json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(2))
    assert first["weights"] == second["weights"]
    assert "copy.deepcopy(model.module)" in first["error"]


def test_one_process_may_measure_alone(tmp_path):
    code = """
import os, torch, torch.distributed as dist, spiritlevel as sl
dist.init_process_group("gloo")
if dist.get_rank() == 0:  # the other does not call it
    net = torch.nn.Linear(3, 2)
    data = (torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    report = sl.measure(net, data, distributed=False)
    assert report.settings["num_samples"] == 4 and report.settings["processes"] == 1
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way
"""
    script = tmp_path / "alone.py"
    script.write_text(code)
    run_in_two_processes(script)


def test_the_example_prints_the_same_in_one_process_and_in_two():
    for _ in range(3):  # an example ends in the usual way, and a thread of gloo's may abort that
        two = torchrun(EXAMPLE)
        if ABORTED not in two.stderr:
            break
    assert two.returncode == 0, two.stderr
    one = run_script(EXAMPLE)

    def values(text):
        rows = [line.split() for line in text.splitlines() if "." in line.split(" ")[0]]
        return {row[0]: row[1] for row in rows}

    assert values(one) == values(two.stdout)
    assert set(values(one)) >= {"curvature.trace", "curvature.lambda_max"}


def test_without_torch_distributed_there_is_one_process():
    from spiritlevel.model.distributed import Processes

    processes = Processes()
    assert (processes.size, processes.rank) == (1, 0)
    tensor = torch.ones(2)
    processes.sum_(tensor)
    assert torch.equal(tensor, torch.ones(2))
    assert processes.gather("x") == ["x"]
    with pytest.raises(KeyError), processes.together():
        raise KeyError("passes through")
