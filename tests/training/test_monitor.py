"""The monitor sees what `measure` sees, at the right moments, and training does not notice it."""

import csv
import json
import math
import random
import subprocess
import sys

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
import spiritlevel.training.monitor.monitor as monitor_module
from spiritlevel.training import FlatnessMonitor
from spiritlevel.training.monitor.budget import parse_every

CLASSES = 3


def problem(seed: int = 0) -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, CLASSES)
    )
    return model, TensorDataset(torch.randn(40, 6), torch.randint(0, CLASSES, (40,)))


class Augmented(TensorDataset):
    """Samples that draw from every random state there is."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * random.random() + float(numpy.random.rand()) + torch.rand(()), y


def drawing(model: nn.Module, batch) -> tuple:
    """A way of calling the model that draws as well."""
    random.random(), numpy.random.rand(), torch.rand(())
    return model(batch[0]), batch[1]


class FakeClock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def train(*, watched: bool) -> tuple[dict, dict, list, list]:
    """Everything that a monitor could disturb, after two epochs."""
    random.seed(3)
    numpy.random.seed(3)
    model, data = problem()
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    other = DataLoader(Augmented(*data.tensors), batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitors = []
    if watched:
        names = ["relative.kappa", "curvature.lambda_max", "head.*"]
        monitors = [
            FlatnessMonitor(model, loader, measures=names, every=2, forward=drawing),
            FlatnessMonitor(model, other, every="epoch", num_samples=10),
        ]
    draws = []
    for _ in range(2):
        for batches in (loader, other):
            for x, y in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                for monitor in monitors:
                    monitor.step()
                draws.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        for monitor in monitors:
            monitor.epoch_end()
    gradients = [p.grad.clone() for p in model.parameters()]
    assert all(module.training for module in model.modules())
    if watched:
        assert [len(monitor.rows) for monitor in monitors] == [10, 2]
    return model.state_dict(), optimizer.state_dict(), gradients, draws


def test_training_is_bit_identical_with_and_without_a_monitor():
    plain = train(watched=False)
    seen = train(watched=True)
    for name, value in plain[0].items():
        assert torch.equal(value, seen[0][name]), name
    momenta = [state["momentum_buffer"] for state in plain[1]["state"].values()]
    for ours, theirs in zip(seen[1]["state"].values(), momenta, strict=True):
        assert torch.equal(ours["momentum_buffer"], theirs)
    assert all(torch.equal(a, b) for a, b in zip(plain[2], seen[2], strict=True))
    assert plain[3] == seen[3]


def test_modes_that_were_set_one_by_one_come_back():
    model, data = problem()
    model.train()
    model[1].eval()
    FlatnessMonitor(model, DataLoader(data, batch_size=40)).measure()
    assert [m.training for m in model] == [True, False, True, True, True]


def test_a_row_is_what_measure_says():
    model, data = problem()
    x, y = data.tensors
    names = ["relative.kappa", "head.trace", "curvature.lambda_max"]
    monitor = FlatnessMonitor(model, (x, y), measures=names)
    row = monitor.measure()
    report = sl.measure(model.eval(), (x, y), measures=names)
    for name in names[:2]:
        assert row[name] == report[name].value
    assert row[names[2]] == pytest.approx(report[names[2]].value, rel=1e-4)  # the residual allowed
    assert row["curvature.lambda_max.residual"] < 1e-3 * row["curvature.lambda_max"]
    assert (row["step"], row["epoch"], row["status"]) == (0, 0, "ok")
    assert row["seconds"] > 0


def test_estimates_come_with_their_error():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    monitor = FlatnessMonitor(
        model, (torch.randn(9, 6), torch.arange(9) % CLASSES), measures="curvature.trace_squared"
    )
    row = monitor.measure()
    assert row["curvature.trace_squared.stderr"] > 0


def test_every_row_is_about_the_same_samples():
    model, data = problem()
    monitor = FlatnessMonitor(model, DataLoader(data, batch_size=16, shuffle=True), num_samples=20)
    first, second = monitor.measure(), monitor.measure()
    assert first["relative.kappa"] == second["relative.kappa"]
    assert sum(len(x) for x, _ in monitor.data) == 20


def test_samples_that_change_afterwards_do_not_matter():
    model, data = problem()
    x, y = (tensor.clone() for tensor in data.tensors)
    monitor = FlatnessMonitor(model, [x, y])  # what next(iter(loader)) gives
    before = monitor.measure()["relative.kappa"]
    x.zero_()
    assert monitor.measure()["relative.kappa"] == before


def test_an_ema_copy_is_measured_even_if_frozen():
    model, data = problem()
    x, y = data.tensors
    ema = torch.optim.swa_utils.AveragedModel(model)
    for parameter in ema.parameters():
        parameter.requires_grad_(False)
    monitor = FlatnessMonitor(ema, (x, y))
    expected = sl.measure(model.eval(), (x, y), measures="relative.kappa")["relative.kappa"].value
    assert monitor.measure()["relative.kappa"] == expected
    assert not any(p.requires_grad for p in ema.parameters())


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode])
def test_it_works_where_the_caller_has_gradients_off(block):
    model, data = problem()
    expected = FlatnessMonitor(model, data.tensors).measure()["relative.kappa"]
    with block():
        x, y = (tensor.clone() for tensor in data.tensors)
        assert FlatnessMonitor(model, (x, y)).measure()["relative.kappa"] == expected
        assert not torch.is_grad_enabled()


# -- when --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1, [1, 2, 3, 4, 5, 6]), (4, [4]), ("2 steps", [2, 4, 6]), ("epoch", [3, 6])],
)
def test_rows_come_when_they_are_due(every, steps):
    model, data = problem()
    monitor = FlatnessMonitor(model, data.tensors, every=every, measures="head.trace")
    for _ in range(2):
        for _ in range(3):
            monitor.step()
        monitor.epoch_end()
    assert [row["step"] for row in monitor.rows] == steps
    assert [row["epoch"] for row in monitor.rows] == [(step - 1) // 3 for step in steps]


def test_every_second_epoch():
    model, data = problem()
    monitor = FlatnessMonitor(model, data.tensors, every="2 epochs", measures="head.trace")
    rows = [monitor.epoch_end(epoch) for epoch in range(4)]
    assert [row and row["epoch"] for row in rows] == [None, 1, None, 3]


def test_time_budget_by_hand(monkeypatch):
    # A step takes 1 s, a measurement 0.05 s a sample, and 10 % may go into measuring. The trial on
    # 5 of the 40 samples takes 0.25 s and lets 2 s be expected, so the n-th measurement fits once
    # 0.25 + 2n is 10 % of the steps so far: after 22.5, 42.5, 62.5, 82.5 s.
    clock = FakeClock()
    model, data = problem()
    options = {"measures": "head.trace", "every": 1, "clock": clock}
    monitor = FlatnessMonitor(model, data.tensors, max_overhead=0.1, **options)
    free = FlatnessMonitor(model, data.tensors, **options)
    real = monitor_module.measure

    def slow(model, data, **options):
        clock.now += 0.05 * sum(len(x) for x, _ in data)
        return real(model, data, **options)

    monkeypatch.setattr(monitor_module, "measure", slow)
    measured = []
    for step in range(1, 101):
        clock.now += 1.0
        if monitor.step() is not None:
            measured.append(step)
        if step >= 3:  # the trial is paid for
            assert monitor.overhead <= 0.1 + 1e-12
    assert measured == [23, 43, 63, 83]
    assert [row["seconds"] for row in monitor.rows] == pytest.approx([2.0] * 4)
    assert free.step()["seconds"] == pytest.approx(2.0)  # no limit, no trial


def test_the_trial_leaves_no_trace():
    model, data = problem()
    clock = FakeClock()  # no time passes: everything fits
    names = ["relative.kappa", "curvature.lambda_max"]
    options = {"measures": names, "clock": clock}
    tried = FlatnessMonitor(model, data.tensors, max_overhead=0.1, **options)
    free = FlatnessMonitor(model, data.tensors, **options)
    assert tried.epoch_end() == free.epoch_end()


def test_time_between_two_runs_is_not_training():
    clock = FakeClock()
    model, data = problem()
    options = {"measures": "head.trace", "every": 1, "max_overhead": 0.1, "clock": clock}
    monitor = FlatnessMonitor(model, data.tensors, **options)
    clock.now += 100.0
    monitor.start()
    clock.now += 7.0
    state = monitor.state_dict()
    clock.now += 1000.0
    resumed = FlatnessMonitor(model, data.tensors, **options)
    resumed.load_state_dict(state)
    clock.now += 1.0
    assert resumed._budget.training == 8.0


# -- warm starts -------------------------------------------------------------------------------


def test_eigenvalues_start_from_the_vector_found_before(monkeypatch):
    model, data = problem()
    found = []
    real = monitor_module.eigenvalues

    def spy(*args, **options):
        found.append((options["start"], real(*args, **options)))
        return found[-1][1]

    monkeypatch.setattr(monitor_module, "eigenvalues", spy)
    names = ["curvature.lambda_max", "curvature.lambda_min"]
    monitor = FlatnessMonitor(model, data.tensors, measures=names)
    monitor.measure()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.001)
    row = monitor.measure()
    assert [start for start, _ in found[:2]] == [None, None]
    for (_, cold), (start, warm) in zip(found[:2], found[2:], strict=True):
        assert start is cold
        assert warm.cost.products < cold.cost.products
    report = sl.measure(model.eval(), data.tensors, measures=names)
    for name in names:
        assert row[name] == pytest.approx(report[name].value, rel=1e-4)


def test_thawed_layers_do_not_trip_over_an_old_vector():
    model, data = problem()
    model[0].requires_grad_(False)
    monitor = FlatnessMonitor(model, data.tensors, measures="curvature.lambda_max")
    assert monitor.measure()["status"] == "ok"
    model[0].requires_grad_(True)
    row = monitor.measure()
    report = sl.measure(model.eval(), data.tensors, measures="curvature.lambda_max")
    assert row["curvature.lambda_max"] == pytest.approx(
        report["curvature.lambda_max"].value, rel=1e-4
    )


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
        ({"num_samples": 0}, r"'num_samples' argument must be at least 1\. Got 0"),
        ({"to": "run.txt"}, r"'to' argument.*\.jsonl or \.csv.*Got 'run\.txt'"),
        ({"to": "nowhere/run.csv"}, r"folder that exists\. Got 'nowhere/run\.csv'"),
        ({"los": "mse"}, r"no argument 'los'.*Those of `measure` are loss, layers"),
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
rank = int(sys.argv[1])
address = f"tcp://127.0.0.1:{sys.argv[2]}"
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
model = nn.parallel.DistributedDataParallel(model)
x, y = torch.randn(10, 4), torch.arange(10) % 3
part = slice(0, 6) if rank == 0 else slice(6, 10)
ticks = iter(range(1000))  # on the clock of process 1 measuring takes as long as training
clock = (lambda: 0) if rank == 0 else (lambda: next(ticks))
own = x[part], y[part]
monitor = FlatnessMonitor(model, own, every=1, max_overhead=0.1, to=sys.argv[3], clock=clock)
alone = FlatnessMonitor(model, (x, y), distributed=False)
monitor.step(); monitor.step(); alone.epoch_end()
assert len(monitor.rows) == 2 and (rank == 0 or not monitor._budget.allows())
print(repr(monitor.rows[0]["relative.kappa"]), [row["relative.kappa"] for row in alone.rows])
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way
"""


def test_two_processes_measure_together_and_one_writes(tmp_path):
    port = str(29500 + random.randrange(2000))
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen([*command, str(rank), port, str(path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    answers = [worker.communicate(timeout=120)[0].split(maxsplit=1) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    data = torch.randn(10, 4), torch.arange(10) % 3
    expected = sl.measure(model, data, measures="relative.kappa")["relative.kappa"].value
    assert answers[0][0] == answers[1][0]
    assert float(answers[0][0]) == pytest.approx(expected, rel=1e-6)
    assert json.loads(answers[0][1]) == [pytest.approx(expected, rel=1e-6)]
    assert json.loads(answers[1][1]) == []
    assert len(path.read_text().splitlines()) == 2
