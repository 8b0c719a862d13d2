"""Where the rows of a monitor go, how a resumed run continues them, and what it refuses."""

import csv
import json
import math

import pytest
import torch
from torch import nn

import spiritlevel as sl
from forked import needs_gloo, run_in_two_processes
from spiritlevel.training import FlatnessMonitor
from spiritlevel.training.monitor.budget import parse_every
from training.monitor.monitor_problem import problem

pytestmark = pytest.mark.sampled(2)  # the others at night

# -- where rows go -----------------------------------------------------------------------------


def test_rows_reach_every_kind_of_file(tmp_path):
    model, data = problem()
    seen = []
    board = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(tmp_path / "board")
    to = [tmp_path / "run.jsonl", str(tmp_path / "run.csv"), board, seen.append]
    monitor = FlatnessMonitor(model, data.tensors, to=to)
    for _ in range(2):
        monitor.step()
        monitor.epoch_end()
        lines = (tmp_path / "run.jsonl").read_text().splitlines()
        assert len(lines) == len(monitor.rows)  # there before the next one begins
    assert [json.loads(line) for line in lines] == monitor.rows == seen
    with (tmp_path / "run.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["relative.kappa"]) for row in table] == [
        row["relative.kappa"] for row in monitor.rows
    ]
    assert [row["step"] for row in table] == ["1", "2"]
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(tmp_path / "board"))
    accumulator.Reload()
    scalars = accumulator.Scalars("flatness/relative.kappa")
    assert [event.step for event in scalars] == [1, 2]
    assert scalars[1].value == pytest.approx(monitor.rows[1]["relative.kappa"], rel=1e-6)


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_a_resumed_run_leaves_the_file_of_an_uninterrupted_one(tmp_path, name):
    def steps(monitor, count):
        for _ in range(count):
            monitor.step()
        return monitor

    def fresh(path):
        model, data = problem()
        return FlatnessMonitor(model, data.tensors, measures="head.trace", every=2, to=path)

    def content(path):
        text = path.read_text()
        rows = [json.loads(line) for line in text.splitlines()] if "jsonl" in name else None
        rows = list(csv.DictReader(text.splitlines())) if rows is None else rows
        return [row | {"seconds": 0} for row in rows]

    straight, broken = tmp_path / f"straight_{name}", tmp_path / name
    whole = steps(fresh(straight), 10)
    monitor = steps(fresh(broken), 5)
    state = json.loads(json.dumps(monitor.state_dict()))
    steps(monitor, 4)  # the run goes on after the checkpoint, and dies while it writes
    with broken.open("a") as file:
        file.write('{"step": 9, "epo' if "jsonl" in name else "9,0,")
    resumed = fresh(broken)
    resumed.load_state_dict(state)
    steps(resumed, 5)
    assert content(broken) == content(straight)
    assert [row["step"] for row in resumed.rows] == [row["step"] for row in whole.rows]


def test_another_run_does_not_write_into_the_file_of_an_earlier_one(tmp_path):
    path = tmp_path / "run.jsonl"
    model, data = problem()
    for _ in range(3):
        FlatnessMonitor(model, data.tensors, measures="head.trace", to=path).measure()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1.jsonl", "run.2.jsonl", "run.jsonl"]
    assert all(len(p.read_text().splitlines()) == 1 for p in tmp_path.iterdir())


# -- when it fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.jsonl", "run.csv"])
def test_a_failing_measurement_is_a_row(tmp_path, name):
    model, data = problem()
    model.train()
    monitor = FlatnessMonitor(model, data.tensors, to=tmp_path / name)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    row = monitor.measure()
    assert row["status"] == "failed"
    assert "'0.weight' has 1 NaN or infinite values of 72" in row["text"]
    assert math.isnan(row["relative.kappa"])
    assert model.training
    assert len((tmp_path / name).read_text().splitlines()) == (1 if "jsonl" in name else 2)
    with torch.no_grad():
        model[0].weight[0, 0] = 0.0
    assert monitor.measure()["status"] == "ok"


def test_strict_raises_and_leaves_the_model_alone():
    model, data = problem()
    model.train()
    monitor = FlatnessMonitor(model, data.tensors, strict=True)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(sl.SpiritlevelError, match=r"'0\.weight' has 1 NaN"):
        monitor.measure()
    assert model.training
    assert monitor.rows == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": []}, r"'data' argument must hold at least one sample\. Got an empty loader"),
        ({"data": 3}, r"must be a loader of batches, or one batch.*Got int"),
        ({"measures": "relative.kapa"}, r"called 'relative\.kapa'\. Did you mean 'relative\.kappa"),
        ({"measures": []}, r"must name at least one measure\. Got an empty list"),
        ({"every": 0}, r"'every' argument must be.*at least 1.*Got 0\."),
        ({"every": "0 steps"}, r"'every' argument must be.*Got '0 steps'"),
        ({"every": "fortnight"}, r"'every' argument must be.*Got 'fortnight'"),
        ({"every": True}, r"'every' argument must be.*Got True"),
        ({"max_overhead": 0.0}, r"'max_overhead' argument.*between 0 and 1\. Got 0\.0"),
        ({"max_overhead": 1.0}, r"'max_overhead' argument.*between 0 and 1\. Got 1\.0"),
        ({"max_overhead": -0.1}, r"'max_overhead' argument.*Got -0\.1"),
        ({"num_samples": 0}, r"'num_samples' argument must be .* of at least 1\. Got 0"),
        ({"num_samples": "x"}, r"'num_samples' argument must be a whole number .*\. Got 'x'"),
        ({"num_samples": 2.5}, r"'num_samples' argument must be a whole number .*\. Got 2\.5"),
        ({"to": "run.txt"}, r"'to' argument.*\.jsonl or \.csv.*Got 'run\.txt'"),
        ({"to": "nowhere/run.csv"}, r"folder that exists\. Got 'nowhere/run\.csv'"),
        ({"los": "mse"}, r"an argument 'los'.*passed on to `measure`: loss, layers"),
        ({"loss": "crossentropy"}, r"'crossentropy'"),
        ({"head": "nothing"}, r"nothing"),
    ],
)
def test_bad_arguments_are_refused_at_once(change, text):
    model, data = problem()
    model.train()
    arguments = {"data": data.tensors, "measures": ["relative.kappa", "head.trace"]} | change
    with pytest.raises(sl.SpiritlevelError, match=text):
        FlatnessMonitor(model, **arguments)
    assert model.training


def test_every_reads_words():
    assert (parse_every("3 epochs").count, parse_every("3 epochs").unit) == (3, "epoch")
    assert (parse_every("step").count, parse_every("step").unit) == (1, "step")


WORKER = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from spiritlevel.training import FlatnessMonitor
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
model = nn.parallel.DistributedDataParallel(model)
x, y = torch.randn(10, 4), torch.arange(10) % 3
part = slice(0, 6) if rank == 0 else slice(6, 10)
ticks = iter(range(1000))  # on the clock of process 1 measuring takes as long as training
clock = (lambda: 0) if rank == 0 else (lambda: next(ticks))
own = x[part], y[part]
monitor = FlatnessMonitor(model, own, every=1, max_overhead=0.1, to=sys.argv[1], clock=clock)
alone = FlatnessMonitor(model, (x, y), distributed=False)
monitor.step(); monitor.step(); alone.epoch_end()
assert len(monitor.rows) == 2 and (rank == 0 or not monitor._budget.allows())
print(repr(monitor.rows[0]["relative.kappa"]), [row["relative.kappa"] for row in alone.rows])
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way
"""


@needs_gloo
def test_two_processes_measure_together_and_one_writes(tmp_path):
    path, worker = tmp_path / "run.jsonl", tmp_path / "worker.py"
    worker.write_text(WORKER)
    answers = [printed.split(maxsplit=1) for printed in run_in_two_processes(worker, path)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    data = torch.randn(10, 4), torch.arange(10) % 3
    expected = sl.measure(model, data, measures="relative.kappa")["relative.kappa"].value
    assert answers[0][0] == answers[1][0]
    assert float(answers[0][0]) == pytest.approx(expected, rel=1e-6)
    assert json.loads(answers[0][1]) == [pytest.approx(expected, rel=1e-6)]
    assert json.loads(answers[1][1]) == []
    assert len(path.read_text().splitlines()) == 2
